// Precision, recall, F1, TP, FP and FN at the score threshold that the reader chooses, for each IoU type.
for (const source of document.querySelectorAll("script[id$=score-counts]")) {
  const section = source.closest("section");
  const { instances, tp, fp } = JSON.parse(source.textContent);
  const [slider, mark] = [section.querySelector("input[type=range]"), section.querySelector("line.chosen")];
  const totals = section.querySelectorAll("p output, .tiles .value"); // the threshold first
  const rows = [...section.querySelectorAll("tbody tr")]; // in the order of the counts, before a reader sorts them
  const width = Number(mark.ownerSVGElement.dataset.width);

  const sum = (counts) => counts.reduce((all, count) => all + count, 0);
  const above = (bins) => sum(bins.slice(Math.round(100 * slider.value)));
  const metrics = (hits, wrong, known) => [
    hits / (hits + wrong), hits / known, (2 * hits) / (hits + wrong + known), hits, wrong, known - hits,
  ];
  const text = (value, at) => (isNaN(value) ? "–" : at < 3 ? value.toFixed(3) : value.toLocaleString("en-US"));

  slider.addEventListener("input", () => {
    const [hits, wrong] = [tp.map(above), fp.map(above)];
    const threshold = Number(slider.value);
    [threshold.toFixed(2), ...metrics(sum(hits), sum(wrong), sum(instances)).map(text)].forEach(
      (shown, at) => (totals[at].textContent = shown),
    );
    rows.forEach((row, category) => {
      metrics(hits[category], wrong[category], instances[category]).forEach((value, at) => {
        const cell = row.cells[row.cells.length - 6 + at];
        cell.textContent = text(value, at);
        if (isNaN(value)) delete cell.dataset.value;
        else cell.dataset.value = value;
      });
    });
    for (const sorted of section.querySelectorAll("th[aria-sort]")) sorted.ariaSort = "none"; // no longer
    for (const end of ["x1", "x2"]) mark.setAttribute(end, width * threshold);
  });
  slider.closest("p").hidden = false;
}
