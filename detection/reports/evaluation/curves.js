// The precision/recall curve of a category that the reader chooses, beside the mean curves.
"use strict";
(() => {
  const chart = document.getElementById("precision-recall");
  const source = document.getElementById("category-curves");
  if (!chart || !source) return;
  const { recall, curves } = JSON.parse(source.textContent);
  if (!curves.length) return;
  const { width, height } = chart.dataset;

  const select = document.getElementById("category-choice");
  curves.forEach(([name], index) => select.append(new Option(name, index)));
  const line = chart.querySelector(".chosen");
  const legend = document.getElementById("chosen-category");
  select.addEventListener("change", () => {
    const precision = select.value === "" ? [] : curves[Number(select.value)][1];
    const points = precision.map((value, index) => `${width * recall[index]},${height * (1 - value / 1000)}`);
    line.setAttribute("points", points.join(" "));
    legend.hidden = select.value === "";
    legend.querySelector("bdi").textContent = select.selectedOptions[0].text;
  });
  select.closest(".filter").hidden = false;
})();
