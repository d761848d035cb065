// Tables marked data-sortable: a click on a header sorts by its column, a text field filters the rows.
"use strict";
(() => {
  const LEAST_ROWS = 6; // for which a filter is worth its place
  const byText = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  function valueOf(row, column) {
    const value = row.cells[column].dataset.value;
    return value === undefined ? null : Number(value);
  }

  // What is undefined comes last, whatever the direction; equal rows keep their order.
  function compareNumbers(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (a - b);
  }

  function sortBy(body, column, numeric, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    const rows = [...body.rows];
    if (numeric) {
      rows.sort((a, b) => compareNumbers(valueOf(a, column), valueOf(b, column), sign));
    } else {
      rows.sort((a, b) => sign * byText.compare(a.cells[column].textContent, b.cells[column].textContent));
    }
    body.append(...rows);
  }

  function makeSortable(table) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      const numeric = header.classList.contains("number");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent;
      header.replaceChildren(button);
      header.ariaSort = "none";
      button.addEventListener("click", () => {
        const first = numeric ? "descending" : "ascending";
        const second = numeric ? "ascending" : "descending";
        const direction = header.ariaSort === first ? second : first;
        headers.forEach((other) => (other.ariaSort = "none"));
        header.ariaSort = direction;
        sortBy(table.tBodies[0], column, numeric, direction);
      });
    });
  }

  function textOf(row) {
    const cells = [...row.cells].filter((cell) => !cell.classList.contains("number"));
    return cells.map((cell) => cell.textContent).join("\n").toLowerCase();
  }

  function makeFilterable(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < LEAST_ROWS) return;
    const bar = document.createElement("div");
    const label = document.createElement("label");
    const field = document.createElement("input");
    const shown = document.createElement("output");
    bar.className = "filter";
    field.type = "search";
    label.append(`Filter ${table.dataset.sortable.toLowerCase()} by text `, field);
    bar.append(label, shown);
    table.parentElement.before(bar);
    const texts = new Map(rows.map((row) => [row, textOf(row)]));
    const filter = () => {
      const wanted = field.value.trim().toLowerCase();
      let count = 0;
      for (const [row, text] of texts) {
        row.hidden = !text.includes(wanted);
        count += !row.hidden;
      }
      shown.textContent = `${count} of ${rows.length} shown`;
    };
    field.addEventListener("input", filter);
    filter();
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    makeSortable(table);
    makeFilterable(table);
  }
})();
