// The precision/recall curve of a category that the reader chooses, beside the mean curves, for each IoU type.
"use strict";
for (const source of document.querySelectorAll("script[id$=category-curves]")) {
  const prefix = source.id.slice(0, -"category-curves".length);
  const chart = document.getElementById(`${prefix}precision-recall`);
  const { recall, curves } = JSON.parse(source.textContent);
  if (!chart || !curves.length) continue;
  const { width, height } = chart.dataset;

  const select = document.getElementById(`${prefix}category-choice`);
  curves.forEach(([name], index) => select.append(new Option(name, index)));
  const line = chart.querySelector(".chosen");
  const legend = document.getElementById(`${prefix}chosen-category`);
  select.addEventListener("change", () => {
    const precision = select.value === "" ? [] : curves[Number(select.value)][1];
    const points = precision.map((value, index) => `${width * recall[index]},${height * (1 - value / 1000)}`);
    line.setAttribute("points", points.join(" "));
    legend.hidden = select.value === "";
    legend.querySelector("bdi").textContent = select.selectedOptions[0].text;
  });
  select.closest(".filter").hidden = false;
}
