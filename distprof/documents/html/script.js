"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.documentElement;
  all(".tools").forEach((tools) => { tools.hidden = false; });

  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const openAll = document.getElementById("open-all");
  openAll.addEventListener("click", () => {
    const open = openAll.textContent === "Open all";
    all("details").forEach((each) => { each.open = open; });
    openAll.textContent = open ? "Close all" : "Open all";
  });

  // A link into something folded opens it
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    closed.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));

  // Heat maps: two lists choose a cell, a click does so too
  all("figure.heat").forEach((figure) => {
    const { rows, columns, values, row: rowName, column: columnName, unit } = figure.dataset;
    const names = [JSON.parse(rows), JSON.parse(columns)];
    const svg = figure.querySelector("svg.cells");
    const cursor = svg.querySelector(".cursor");
    const output = document.createElement("output");
    const choices = [rowName, columnName].map((title, axis) => {
      const label = document.createElement("label");
      const select = document.createElement("select");
      names[axis].forEach((name, index) => select.add(new Option(name, String(index))));
      label.append(`${title} `, select);
      return label;
    });
    const selects = choices.map((label) => label.querySelector("select"));
    const show = () => {
      const [y, x] = selects.map((select) => Number(select.value));
      const at = 2 * (y * names[1].length + x);
      const text = values.slice(at, at + 2);
      cursor.setAttribute("x", x);
      cursor.setAttribute("y", y);
      cursor.setAttribute("visibility", "visible");
      output.textContent = text === "zz" ? "not recorded" : `${parseInt(text, 36) / 10} ${unit}`;
    };
    selects.forEach((select) => select.addEventListener("change", show));
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) / box.width) * names[1].length);
      const y = Math.floor(((event.clientY - box.top) / box.height) * names[0].length);
      if (x < 0 || y < 0 || x >= names[1].length || y >= names[0].length) return;
      selects[0].value = String(y);
      selects[1].value = String(x);
      show();
    });
    const line = document.createElement("p");
    line.className = "chosen";
    line.append(...choices, output);
    figure.querySelector(".wide").before(line);
  });
})();
