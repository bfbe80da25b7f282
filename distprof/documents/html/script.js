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

  // A link to a folded part opens it
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

  const SVG = "http://www.w3.org/2000/svg";
  const made = (name, text, attributes = {}) => {
    const each = document.createElement(name);
    each.textContent = text;
    Object.entries(attributes).forEach(([key, value]) => each.setAttribute(key, value));
    return each;
  };

  // Move and zoom the content of a region with buttons, keys and the mouse; without a script it only scrolls
  const zoomable = (region, resize, show) => {
    let factor = 1, from = null, moved = false;
    const zoom = (next, x = region.clientWidth / 2, y = region.clientHeight / 2) => {
      const before = [region.scrollWidth, region.scrollHeight];
      const at = [(region.scrollLeft + x) / before[0], (region.scrollTop + y) / before[1]];
      factor = resize(next);
      region.scrollLeft = at[0] * region.scrollWidth - x;
      region.scrollTop = at[1] * region.scrollHeight - y;
      show(factor);
    };
    const steps = { "+": () => zoom(factor * 1.5), "=": () => zoom(factor * 1.5), "-": () => zoom(factor / 1.5), "0": () => zoom(0), "1": () => zoom(1) };
    region.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !steps[event.key]) return;
      event.preventDefault();
      steps[event.key]();
    });
    region.addEventListener("pointerdown", (event) => {
      moved = false;
      if (event.pointerType === "mouse" && event.button === 0) from = [event.clientX, event.clientY, region.scrollLeft, region.scrollTop];
    });
    addEventListener("pointermove", (event) => {
      if (!from) return;
      const [dx, dy] = [event.clientX - from[0], event.clientY - from[1]];
      moved = moved || Math.abs(dx) + Math.abs(dy) > 4;
      if (moved) { region.scrollLeft = from[2] - dx; region.scrollTop = from[3] - dy; event.preventDefault(); }
    });
    addEventListener("pointerup", () => { from = null; });
    region.addEventListener("click", (event) => { if (moved) event.stopPropagation(); moved = false; }, true);
    const line = made("p", "", { class: "chosen zoom", role: "group", "aria-label": "Size of the picture" });
    [["−", "Smaller", "-"], ["+", "Larger", "+"], ["Whole", "Whole picture", "0"], ["100 %", "Original size", "1"]].forEach(([text, name, key]) => {
      const button = made("button", text, { type: "button", "aria-label": name });
      button.addEventListener("click", () => steps[key]());
      line.append(button);
    });
    line.append(made("small", "Keys: arrows move the picture, + and − zoom, 0 shows the whole picture."));
    region.before(line);
    region.classList.add("movable");
    return { line, zoom, factor: () => factor };
  };

  // Maps: a click or two lists select a cell
  all("figure.heat").forEach((figure) => {
    const { rows, columns, groups, values, words, row: rowName, column: columnName, group: groupName, unit } = figure.dataset;
    const names = [JSON.parse(rows), JSON.parse(columns)];
    const parts = JSON.parse(groups);
    const known = words && JSON.parse(words);
    const svg = figure.querySelector("svg.cells");
    const region = figure.querySelector(".wide");
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
    const told = (text) => {
      if (known) return text === "zz" ? unit : known[parseInt(text, 36)];
      return text === "zz" ? "not recorded" : `${parseInt(text, 36) / 10} ${unit}`;
    };
    const show = () => {
      const [y, x] = selects.map((select) => Number(select.value));
      const at = 2 * (y * names[1].length + x);
      cursor.setAttribute("x", x);
      cursor.setAttribute("y", y);
      cursor.setAttribute("visibility", "visible");
      output.textContent = told(values.slice(at, at + 2));
    };
    const size = ["width", "height"].map((name) => Number(svg.getAttribute(name)));
    const goTo = (y, x) => {
      const cell = [svg.clientWidth / names[1].length, svg.clientHeight / names[0].length];
      region.scrollTop = Math.max(0, (y + 0.5) * cell[1] - region.clientHeight / 2);
      if (x !== undefined) region.scrollLeft = Math.max(0, (x + 0.5) * cell[0] - region.clientWidth / 2);
    };
    selects.forEach((select) => select.addEventListener("change", () => { show(); goTo(...selects.map((each) => Number(each.value))); }));
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
    region.before(line);
    if (names[0].length <= 32 && names[1].length <= 60) return;

    // Labels of one side, as many as fit at the current cell size
    const sides = all(".labels", figure);
    const label = (axis, cell) => {
      const isDown = axis === 0;
      const short = names[axis].map((name) => name.slice(0, 28));
      const longest = Math.max(...short.map((name) => name.length));
      const side = sides[axis];
      const isTurned = side.classList.contains("turned");
      const every = Math.ceil((isDown || isTurned ? 14 : 7 * longest + 8) / cell);
      side.replaceChildren();
      side.setAttribute(isDown ? "height" : "width", cell * short.length + (isDown ? 0 : 40));
      for (let i = 0; i < short.length; i += every) {
        const text = document.createElementNS(SVG, "text");
        text.textContent = short[i];
        text.setAttribute("x", isDown ? Number(side.getAttribute("width")) - 6 : i * cell);
        text.setAttribute("y", isDown ? (i + 0.5) * cell + 4 : 12);
        if (isDown) text.setAttribute("text-anchor", "end");
        if (isTurned) {
          text.removeAttribute("x");
          text.removeAttribute("y");
          text.setAttribute("transform", `translate(${(i + 0.3) * cell} 6) rotate(90)`);
        }
        side.append(text);
      }
    };
    const most = 40;
    const resize = (wanted) => {
      const room = [region.clientWidth - sides[0].clientWidth - 20, region.clientHeight - 36];
      const whole = Math.min(1, ...room.map((pixels, axis) => pixels / size[axis]));
      const factor = Math.max(whole, Math.min(wanted, most / Math.min(size[0] / names[1].length, size[1] / names[0].length)));
      size.forEach((base, axis) => {
        const cells = names[1 - axis].length;
        const least = Math.min(base, Math.max(room[axis], 40));
        const pixels = Math.max(least, Math.min(base * factor, Math.max(base, most * cells)));
        svg.setAttribute(axis ? "height" : "width", pixels);
        label(1 - axis, pixels / cells);
      });
      return factor;
    };
    const zoomed = zoomable(region, resize, () => {});
    if (parts.length > 1) {
      const choice = made("label", `${groupName} `);
      const select = document.createElement("select");
      parts.forEach(([first, name]) => select.add(new Option(name, String(first))));
      select.addEventListener("change", () => {
        selects[0].value = select.value;
        show();
        region.scrollTop = Number(select.value) * svg.clientHeight / names[0].length;
      });
      choice.append(select);
      zoomed.line.prepend(choice);
    }
  });

  // Pipeline schedules: zoom stretches only the time axis, so that more slots have room for their number
  all("figure.schedule").forEach((figure) => {
    const svg = figure.querySelector("svg.slots");
    const base = Number(svg.getAttribute("width"));
    zoomable(figure.querySelector(".wide"), (wanted) => {
      const room = figure.querySelector(".wide").clientWidth - figure.querySelector(".lines").clientWidth;
      const factor = Math.min(Math.max(wanted, Math.min(1, room / base)), 32);
      svg.setAttribute("width", base * factor);
      return factor;
    }, (factor) => { figure.dataset.zoom = String(2 ** Math.max(0, Math.floor(Math.log2(factor)))); });
  });
})();
