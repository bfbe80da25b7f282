"use strict";
// The picture of the step: the data that the static picture shows, drawn on a canvas that zooms and opens
(() => {
  const figure = document.getElementById("picture");
  if (!figure) return;
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const VALUE = new Int8Array(128);
  [...DIGITS].forEach((digit, value) => { VALUE[digit.charCodeAt(0)] = value; });
  let GUTTER = 120;
  const AXIS = 22, MOST_HIGH = 680, BUDGET = 3, PLAIN = "12px system-ui, sans-serif", BOLD = `600 ${PLAIN}`; // ms of a frame to paint in
  const isWait = data.kinds.map((kind) => kind === "exposed_wait" || kind === "exposed_comm_unsplit");
  const isIdle = data.kinds.map((kind) => kind === "rest");
  const KINDS = data.kinds.length, IDLE = isIdle.indexOf(true);
  const SLOTS = Object.entries({ forward: "transfer", backward: "computation", "backward-input": "wait", "backward-weight": "idle", loss: "copy", overlapped: "dim" });

  const numbers = (text) => {
    const found = [];
    for (let i = 0, value = 0, shift = 0; i < text.length; i++) {
      const digit = VALUE[text.charCodeAt(i) & 127];
      value += (digit & 31) * 2 ** shift;
      shift += 5;
      if (digit < 32) { found.push(value); value = 0; shift = 0; }
    }
    return found;
  };
  // Pieces as three arrays: start, end, and class or name
  const packed = (count) => ({ start: new Float64Array(count), end: new Float64Array(count), of: new Int32Array(count) });
  const splitOf = (text) => {
    const raw = numbers(text), count = (raw.length - 1) >> 1, pieces = packed(Math.max(count, 0));
    for (let i = 0, at = raw[0] || 0; i < count; i++) {
      pieces.start[i] = at;
      pieces.end[i] = at += raw[2 * i + 2];
      pieces.of[i] = raw[2 * i + 1] < KINDS ? raw[2 * i + 1] : IDLE;
    }
    return pieces;
  };
  const laneOf = (text) => {
    const raw = numbers(text), count = Math.floor(raw.length / 3), pieces = packed(count);
    for (let i = 0, at = 0; i < count; i++) {
      pieces.start[i] = at += raw[3 * i];
      pieces.end[i] = at += raw[3 * i + 1];
      pieces.of[i] = raw[3 * i + 2];
    }
    return pieces;
  };
  // Index of the last piece that starts at or before a time, or -1
  const before = (pieces, time) => {
    let low = 0, high = pieces.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pieces.start[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const memo = new WeakMap();
  const piecesOf = (owner, isLane) => {
    if (!memo.has(owner)) memo.set(owner, isLane ? laneOf(owner.pieces) : splitOf(owner.split));
    return memo.get(owner);
  };
  const duration = (ns) => {
    const [size, unit] = [[6e10, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([least]) => ns >= least) || [1, "ns"];
    const value = ns / size;
    return `${value.toFixed(value >= 100 || unit === "ns" ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
  };

  // Colours, as the style sheet has them in this theme
  let ink = {};
  const readInk = () => {
    const probe = document.createElement("i");
    figure.append(probe);
    const colour = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    };
    const names = { exposed_wait: "wait", exposed_comm_unsplit: "transfer", exposed_copy: "copy", rest: "idle" };
    const css = (one) => `rgb(${one.join(",")})`;
    const [ground, front, dim] = ["bg", "fg", "dim"].map(colour);
    const pale = (one) => one.map((part, i) => Math.round(part * .45 + ground[i] * .55));
    const kinds = data.kinds.map((kind) => colour(names[kind] || kind));
    const light = kinds.map((one, i) => isWait[i] || isIdle[i] ? pale(one) : one);
    const slots = SLOTS.map(([, name]) => colour(name));
    // Three bytes each: the classes, the same between the lines of a hatching, activities, calls, slots
    const shades = [...kinds.map((one, i) => isIdle[i] ? light[i] : one), ...light, pale(colour("computation")), pale(colour("transfer")), ...slots];
    ink = { ground: css(ground), front: css(front), dim: css(dim), parts: ground, shades: Uint8Array.from(shades.flat()) };
    probe.remove();
  };
  // Controls
  const made = (name, text = "", attributes = {}) => {
    const each = document.createElement(name);
    each.textContent = text;
    Object.entries(attributes).forEach(([key, value]) => each.setAttribute(key, value));
    return each;
  };
  const bar = made("p", "", { class: "chosen", role: "group", "aria-label": "Picture of the step" });
  const select = (title, options) => {
    const label = made("label", `${title} `), list = document.createElement("select");
    options.forEach(([text, value]) => list.add(new Option(text, value)));
    label.append(list);
    label.hidden = options.length < 2;
    bar.append(label);
    list.addEventListener("change", () => { layOut(); say(); draw(); });
    return list;
  };
  const stepList = select("Step", data.steps.map((one, i) => [one.step === null ? "capture" : `${one.step} (${one.kind})`, String(i)]));
  const repairs = data.below.find((each) => each.length) || [];
  const belowList = select("Below", [["nothing", ""], ...repairs.map((one, i) => [one.option, String(i)])]);
  belowList.value = repairs.length ? "0" : "";
  const isFoldable = data.steps[0].ranks.length > 15, isAlike = data.groups.some((group) => group.ranks.length > 1), isWhole = data.groups.length < data.steps[0].ranks.length, known = new Set(data.steps[0].ranks.map((rank) => rank.rank));
  const folds = isFoldable ? Object.keys(data.folds).filter((name) => Object.values(data.folds[name]).filter((ranks) => ranks.some((rank) => known.has(rank))).length > 1) : [];
  const rankList = select("Ranks", [...(isAlike ? [["alike ones folded", ""]] : []), ...folds.map((name) => [`folded by ${name}`, `by ${name}`]), ...(isAlike && !isWhole ? [] : [["all", "all"]])]);
  [["−", "Smaller", () => zoom(1 / 1.5)], ["+", "Larger", () => zoom(1.5)], ["Whole", "Whole step", () => whole()]].forEach(([text, name, act]) => {
    const button = made("button", text, { type: "button", "aria-label": name });
    button.addEventListener("click", () => { act(); draw(); });
    bar.append(button);
  });
  const canOpen = (rank, ranks) => Boolean((rank.lanes || []).length) || (ranks.length > 1 && isWhole);
  const hasMore = isWhole || data.steps[0].ranks.some((rank) => canOpen(rank, []));
  const HINT = matchMedia("(pointer: coarse)").matches ? `Tap a piece for its name${hasMore ? ", a name on the left to open it" : ""}. Drag to move, pinch to zoom.` : `${hasMore ? "Click a name to open it, drag" : "Drag"} to move. In focus: wheel or + − zoom, arrows move, ${hasMore ? "Enter opens, " : ""}. and , go from piece to piece, 0 shows the whole step.`;
  const canvas = made("canvas", "", { tabindex: "0", role: "application", "aria-label": "The step, a row per rank. The same as a table follows.", "aria-describedby": "picture-says" });
  const says = made("output", HINT, { id: "picture-says" });
  figure.querySelector(".static").before(bar, canvas, says);
  figure.classList.add("live");
  const pen = canvas.getContext("2d", { alpha: false });

  // What is shown: a stretch of time, rows, the row and the piece in focus
  const opened = new Set(), unfolded = new Set();
  const caption = figure.querySelector("figcaption");
  let step, below, rows = [], total = 0, scale = 1, low = 0, high = 1, top = 0, ratio = 1, wide = 0, tall = 0;
  let chosen = -1, hover = null, marked = new Set(), frame = 0;
  // Its pixels: the bands of rows they show, the view they were painted for, bands that wait for their turn
  let image = null, pixels, spare, line, between, bands = [], labels = [], besides = [], lines = [], was = null, stale = 0, turn = 0, rest = 0, isSlow = false;
  const late = new Set(data.late);

  const layOut = () => {
    hover = null;
    step = data.steps[Number(stepList.value)];
    below = belowList.value === "" ? null : data.below[Number(stepList.value)][Number(belowList.value)] || null;
    const byRank = new Map(step.ranks.map((rank) => [rank.rank, rank]));
    const isFolded = isAlike && rankList.value === "", fold = data.folds[rankList.value.slice(3)];
    const bundles = fold && Object.entries(fold).map(([name, ranks]) => ({ name, ranks: ranks.filter((rank) => byRank.has(rank)) })).filter((one) => one.ranks.length);
    const groups = bundles ? [] : isFolded ? data.groups : step.ranks.map((rank) => ({ ranks: [rank.rank], shown: rank.rank }));
    const place = rankList.value.slice(3);
    caption.textContent = [data.captions[Number(stepList.value)], isFolded ? data.alike : bundles ? `Ranks of a ${place === "node" ? place : `${place} group`} share a row, with a line for each.` : ""].filter(Boolean).join(" ");
    const size = Math.max(step.span_ns, below ? below.span_ns : 0) / step.unit_ns;
    if (size !== scale) { scale = size; low = 0; high = scale; }
    wide = Math.max(figure.clientWidth, 240);
    GUTTER = wide < 480 ? 98 : 120;
    const each = groups.length > 40 ? Math.min(8, MOST_HIGH / groups.length) : groups.length > 16 ? 12 : 18;
    rows = [];
    const head = (text) => { const title = fitting(text); rows.push({ title, tall: 10 + 14 * title.length, gap: 0 }); };
    if (data.title) head(data.title);
    const add = (rank, label, tall, isBelow, ranks = [rank.rank], bundle = null) => {
      const isOpen = opened.has(rank.rank) && !isBelow && !bundle;
      rows.push({ rank, label, tall: isOpen ? 18 : tall, gap: tall > 8 ? 2 : 0, pieces: piecesOf(rank), isBelow, ranks, canOpen: !isBelow && (Boolean(bundle) || canOpen(rank, ranks)), bundle });
      const slots = (rank.lanes || []).filter((lane) => lane.name === "pipeline slots");
      const shown = isOpen ? rank.lanes : tall >= 12 ? slots : [];
      if (!isBelow) shown.forEach((lane) => rows.push({ rank, lane, label: `  ${lane.name.split(", ").pop()}`, tall: 13, gap: 1, pieces: piecesOf(lane, true), isSlots: lane.name === "pipeline slots" }));
    };
    // A bundle is one row in which every rank has a line, or a heading and a row for each rank
    const heightOfOne = bundles && Math.max(2, Math.min(18, MOST_HIGH / bundles.length - 2));
    (bundles || []).forEach((bundle) => {
      const mark = bundle.ranks.some((one) => late.has(one)) ? "▲ " : "", isOpen = unfolded.has(`${rankList.value} ${bundle.name}`);
      if (isOpen) rows.push({ title: [`▾ ${mark}${bundle.name}`], bundle, tall: 16, gap: 0, canOpen: true });
      bundle.ranks.forEach((one) => isOpen ? add(byRank.get(one), `  ${late.has(one) ? "▲ " : ""}rank ${one}`, bundle.ranks.length > 40 ? 4 : 12, false) : add(byRank.get(one), "", heightOfOne / bundle.ranks.length, false, [one], bundle));
      const first = rows[rows.length - bundle.ranks.length], last = rows[rows.length - 1];
      if (!isOpen) Object.assign(first, { heading: `▸ ${mark}${bundle.name}`, high: heightOfOne });
      if (!isOpen) last.gap = 2;
    });
    const nameOf = (group, mark) => group.ranks.length > 1 ? `${mark}${group.ranks.length} like rank ${group.shown}` : `${mark}rank ${group.shown}`;
    groups.forEach((group) => {
      const rank = byRank.get(group.shown);
      if (!rank) return;
      const mark = group.ranks.some((one) => late.has(one)) ? "▲ " : "";
      const many = group.ranks.length > 1;
      add(rank, nameOf(group, mark), each, false, group.ranks);
      if (many && opened.has(group.shown)) group.ranks.forEach((one) => { if (one !== group.shown && byRank.has(one)) add(byRank.get(one), `   ${late.has(one) ? "▲ " : ""}rank ${one}`, group.ranks.length > 40 ? 4 : 12, false); });
    });
    if (below) {
      head(below.title);
      below.ranks.forEach((rank) => {
        const group = below.groups.find((one) => one.shown === rank.rank) || { ranks: [rank.rank], shown: rank.rank };
        add(rank, nameOf(group, ""), 18, true, group.ranks);
      });
    }
    total = 0;
    rows.forEach((row) => { row.top = total; total += row.tall + row.gap; });
    ratio = Math.min(devicePixelRatio || 1, 2);
    tall = Math.min(total, MOST_HIGH) + AXIS;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(tall * ratio);
    canvas.style.height = `${tall}px`;
    top = Math.max(0, Math.min(top, total - tall + AXIS));
    image = pen.createImageData(Math.max(canvas.width - Math.round(GUTTER * ratio), 1), Math.max(Math.round((tall - AXIS) * ratio), 1));
    pixels = new Uint32Array(image.data.buffer);
    [spare, line, between] = [pixels.length, image.width, image.width].map((size) => new Uint32Array(size));
    was = null;
    chosen = Math.min(chosen, rows.length - 1);
    labels = rows.filter((row) => row.title || row.lane || row.tall >= 11 || row.high >= 11);
    beside();
    lines = [...linesOf(step.waits, rows.filter((row) => !row.isBelow)), ...(below ? linesOf(below.waits, rows.filter((row) => row.isBelow)) : [])];
  };

  // A pixel has each colour by its share of the time there, and the ground for the rest: nothing vanishes, nothing grows
  const pixel = (r, g, b) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  const colour = (pieces, line, tones, from, unit) => {
    const { start, end, of } = pieces, { parts, shades } = ink, width = line.length;
    let at = -1, r = 0, g = 0, b = 0, free = 1;
    for (let i = Math.max(before(pieces, from), 0); i <= start.length; i++) {
      const a = i < start.length ? Math.max((start[i] - from) * unit, 0) : width, x = Math.floor(a);
      if (x !== at) {
        if (at >= 0 && at < width) line[at] = pixel(r + free * parts[0], g + free * parts[1], b + free * parts[2]);
        at = x; r = g = b = 0; free = 1;
      }
      if (x >= width) break;
      const until = Math.min((end[i] - from) * unit, width);
      if (until <= a) continue;
      const shade = 3 * tones[of[i]], last = Math.floor(until), red = shades[shade], green = shades[shade + 1], blue = shades[shade + 2];
      let share = Math.min(until, x + 1) - a;
      if (last > x) {
        free -= share;
        line[x] = pixel(r + share * red + free * parts[0], g + share * green + free * parts[1], b + share * blue + free * parts[2]);
        const plain = pixel(red, green, blue);
        for (let inner = x + 1; inner < last; inner++) line[inner] = plain;
        at = last; r = g = b = 0; free = 1; share = until - last;
      }
      r += share * red; g += share * green; b += share * blue; free -= share;
    }
  };
  const tones = (count, toneOf) => Uint8Array.from({ length: count }, (_, i) => toneOf(i));
  const classTones = tones(KINDS, (kind) => kind), paleTones = tones(KINDS, (kind) => KINDS + kind);
  const tonesOf = (row) => {
    if (!row.lane) return classTones;
    const plainTone = 2 * KINDS + (row.lane.name === "communication" ? 1 : 0);
    const actions = SLOTS.map(([action]) => action), slotTone = (name) => actions.indexOf(name.split(" of ")[0].replace(/_/g, "-"));
    return tones(step.names.length, (i) => row.isSlots && slotTone(step.names[i]) >= 0 ? 2 * KINDS + 2 + slotTone(step.names[i]) : plainTone);
  };
  // Where pieces of a lane begin, where there is room to see it
  const edges = (pieces, line, from, unit) => {
    const ground = pixel(...ink.parts);
    for (let i = Math.max(before(pieces, from), 0); i < pieces.start.length; i++) {
      const x = Math.floor((pieces.start[i] - from) * unit);
      if (x >= line.length) break;
      if (x >= 0 && (pieces.end[i] - from) * unit - x > 3) line[x] = ground;
    }
  };
  // Ranks that share a line of pixels have equal parts of it; red and blue are added in one number
  let reds = new Uint32Array(0), greens = reds;
  const mixed = (first, last, line, ground, from, unit) => {
    const many = last - first + 1, width = line.length, part = Math.floor(65536 / many);
    if (reds.length < width) { reds = new Uint32Array(width); greens = new Uint32Array(width); }
    const red = reds, green = greens;
    for (let i = first; i <= last; i++) {
      line.fill(ground);
      colour(rows[i].pieces, line, classTones, from, unit);
      if (many === 1) return;
      if (many === 2 && i === last) { for (let x = 0; x < width; x++) line[x] = (line[x] & red[x]) + ((line[x] ^ red[x]) >>> 1 & 0x7f7f7f7f); return; }
      if (many === 2) red.set(line);
      else if (i === first) for (let x = 0; x < width; x++) { red[x] = line[x] & 0xff00ff; green[x] = line[x] >>> 8 & 0xff; }
      else for (let x = 0; x < width; x++) { red[x] += line[x] & 0xff00ff; green[x] += line[x] >>> 8 & 0xff; }
    }
    for (let x = 0; x < width; x++) line[x] = -16777216 | (red[x] >>> 16) * part & 0xff0000 | (green[x] * part >>> 8) & 0xff00 | (red[x] & 0xffff) * part >>> 16;
  };
  // Bands of pixels: a row each, or the rows that share a line
  const band = () => {
    bands = [];
    const lineOf = (row) => row && row.pieces && row.tall * ratio < 1 ? Math.floor((row.top - top) * ratio) : null;
    for (let i = 0; i < rows.length; i++) {
      const row = rows[i], first = i, y = lineOf(row);
      const [from, to] = y === null ? [Math.round((row.top - top) * ratio), Math.round((row.top + row.tall - top) * ratio)] : [y, y + 1];
      if (y !== null) while (lineOf(rows[i + 1]) === y && i - first < 255) i++;
      const every = y === null && !row.lane && to - from > 6 ? Math.round(4 * ratio) : 0;
      if (row.pieces && to > 0 && from < image.height) bands.push({ row, first, last: i, from, to, every, isShared: y !== null, tones: tonesOf(row) });
    }
  };
  // Columns of a band, from one to before another
  const fill = (one, left, right) => {
    const { row } = one, { width, height } = image, unit = width / (high - low), from = low + left / unit, ground = pixel(...ink.parts);
    const [own, paler] = right - left < width ? [line.subarray(left, right), between.subarray(left, right)] : [line, between];
    if (one.isShared) mixed(one.first, one.last, own, ground, from, unit);
    else { own.fill(ground); colour(row.pieces, own, one.tones, from, unit); }
    if (row.lane) edges(row.pieces, own, from, unit);
    else if (one.every) { paler.fill(ground); colour(row.pieces, paler, paleTones, from, unit); }
    for (let y = Math.max(one.from, 0); y < Math.min(one.to, height); y++) pixels.set(one.every && (y - one.from) % one.every === one.every >> 1 ? paler : own, y * width + left);
  };
  // Pixels of the last view go where they are in this one, by whole pixels or stretched; returns the columns that get some
  const reuse = (moved, isExact) => {
    const { width, height } = image, unit = width / (high - low);
    if (isExact) {
      pixels.copyWithin(Math.max(-moved, 0), Math.max(moved, 0), width * height - Math.max(-moved, 0));
      return [Math.max(-moved, 0), Math.min(width - moved, width)];
    }
    const source = new Int32Array(width);
    for (let x = 0; x < width; x++) source[x] = Math.floor((low + (x + .5) / unit - was.low) * width / (was.high - was.low));
    let left = 0, right = width;
    while (left < width && source[left] < 0) left++;
    while (right > left && source[right - 1] >= width) right--;
    spare.set(pixels);
    const [given, made] = [spare, pixels];
    for (let at = 0; at < made.length; at += width) for (let x = left; x < right; x++) made[at + x] = given[at + source[x]];
    return [left, right];
  };
  // What is new is painted; where all of it takes too long for a frame, some in each, below what is stretched
  const paint = () => {
    const { width, height } = image, ground = pixel(...ink.parts), begun = performance.now();
    const isKept = was && was.top === top, moved = isKept ? (low - was.low) * width / (high - low) : 0;
    const isExact = isKept && Math.abs(high - low - was.high + was.low) < 1e-6 && Math.abs(moved - Math.round(moved)) < 1e-3 && Math.abs(moved) < width;
    if (!isKept || !isExact && !isSlow) {
      if (!isKept) band();
      pixels.fill(ground);
      bands.forEach((one) => fill(one, 0, width));
      isSlow = performance.now() - begun > BUDGET;
      stale = 0;
    } else if (was.low !== low || was.high !== high) {
      const [left, right] = reuse(Math.round(moved), isExact);
      [[0, left], [right, width]].filter(([a, b]) => a < b).forEach(([a, b]) => {
        for (let y = 0; y < height; y++) pixels.fill(ground, y * width + a, y * width + b);
        bands.forEach((one) => fill(one, a, b));
      });
      if (!isExact) stale = bands.length;
    }
    was = { low, high, top };
    const isAll = stale > 0 && stale === bands.length;
    for (; stale && performance.now() - begun < BUDGET; stale--) fill(bands[turn = (turn + 1) % bands.length], 0, width);
    if (stale) draw(); else if (isAll) isSlow = false;
  };
  const xOf = (time) => GUTTER + (time - low) / (high - low) * (wide - GUTTER);
  const timeAt = (x) => low + (x - GUTTER) / (wide - GUTTER) * (high - low);
  const rowAt = (y) => rows.findIndex((row) => y + top >= row.top && y + top < row.top + row.tall + row.gap);

  const write = () => {
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.textBaseline = "middle";
    pen.font = PLAIN;
    pen.textAlign = "left";
    const isSeen = (row) => row.top - top + Math.max(row.tall, row.high || 0) >= 0 && row.top - top <= tall - AXIS;
    pen.fillStyle = ink.front;
    rows.forEach((row, i) => { if ((i === chosen || (marked.size && row.rank && !row.lane && !row.isBelow && marked.has(row.rank.rank))) && isSeen(row)) pen.fillRect(GUTTER - 5, row.top - top, 3, Math.max(row.tall, 2)); });
    labels.filter(isSeen).forEach((row) => {
      const y = row.top - top, middle = y + row.tall / 2;
      pen.fillStyle = row.lane ? ink.dim : ink.front;
      pen.textAlign = "left";
      if (row.title) { pen.font = BOLD; row.title.forEach((text, i) => pen.fillText(text, 0, middle + 14 * i - 7 * (row.title.length - 1))); pen.font = PLAIN; return; }
      if (row.high >= 11) pen.fillText(row.heading.slice(0, 20), 0, y + row.high / 2, GUTTER - 10);
      else if (row.tall >= 11) pen.fillText((row.canOpen && !row.lane ? opened.has(row.rank.rank) ? "▾ " : "▸ " : "") + row.label.slice(0, 22), 0, middle, GUTTER - 10);
      if (row.lane && row.tall >= 11) writeNames(row, middle);
    });
    pen.fillStyle = ink.dim;
    pen.textAlign = "left";
    let free = -1;
    besides.forEach(([row, text]) => {
      const y = row.top - top;
      if (y < Math.max(free, 0) || y > tall - AXIS - 12) return;
      pen.fillText(text, 0, y + 6, GUTTER - 10);
      free = y + 14;
    });
  };
  // A title on as many lines as it needs
  const fitting = (text) => {
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.font = BOLD;
    const found = [""];
    text.replace(/(\d) (?=[mµn]?s\b)/g, "$1\u00a0").split(" ").forEach((word) => {
      const longer = `${found[found.length - 1]} ${word}`.trim();
      if (pen.measureText(longer).width <= wide || longer === word) found[found.length - 1] = longer; else found.push(word);
    });
    return found;
  };
  const writeNames = (row, middle) => {
    const { pieces } = row;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = row.isSlots ? ink.ground : ink.front;
    for (let i = Math.max(before(pieces, low), 0), last = -1; i < pieces.start.length && pieces.start[i] < high; i++) {
      const a = Math.max(xOf(pieces.start[i]), GUTTER), b = Math.min(xOf(pieces.end[i]), wide);
      const name = step.names[pieces.of[i]] || "";
      const text = row.isSlots ? (name.match(/micro-batch (\d+)/) || ["", ""])[1] : name;
      const room = Math.floor((b - a - 4) / 5.5);
      if (a < last || (row.isSlots ? room < text.length : room < 4)) continue;
      last = b;
      pen.textAlign = row.isSlots ? "center" : "left";
      pen.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, row.isSlots ? (a + b) / 2 : a + 3, middle);
    }
    pen.font = PLAIN;
  };
  // Names beside rows too low for their own: each node at its first rank, or every so many ranks
  const beside = () => {
    const first = new Map(rows.filter((row) => row.heading).map((row) => [row.rank.rank, row.heading]));
    if (!first.size) Object.entries(data.folds.node || {}).forEach(([name, ranks]) => first.set(Math.min(...ranks), name));
    const low = rows.filter((row) => row.rank && !row.lane && !row.isBelow && row.tall < 11 && !(row.high >= 11) && (first.size < 2 || first.has(row.rank.rank)));
    besides = low.map((row) => [row, first.size > 1 ? first.get(row.rank.rank).slice(0, 16) : `rank ${row.rank.rank}`]);
  };
  const axis = () => {
    const span = (high - low) * step.unit_ns, aim = span / Math.max((wide - GUTTER) / 110, 1);
    const base = 10 ** Math.floor(Math.log10(Math.max(aim, 1))), tick = [1, 2, 5, 10].map((one) => one * base).find((one) => one >= aim);
    pen.fillStyle = ink.dim;
    pen.textAlign = "center";
    pen.font = "11px system-ui, sans-serif";
    for (let at = Math.ceil(low * step.unit_ns / tick) * tick; at <= high * step.unit_ns; at += tick) {
      const x = xOf(at / step.unit_ns);
      pen.fillRect(x, tall - AXIS, 1, 4);
      pen.fillText(at === 0 ? "0" : duration(at), Math.min(Math.max(x, GUTTER + 4), wide - 24), tall - 8);
    }
  };
  const linesOf = (waits, within) => {
    const line = new Map();
    within.forEach((row) => { if (row.ranks) row.ranks.forEach((rank) => { if (!line.has(rank) || row.ranks.length === 1) line.set(rank, row); }); });
    return waits.map((wait) => ({ wait, from: line.get(wait.waiting_rank), to: line.get(wait.late_rank) })).filter(({ from, to }) => from && to && from !== to);
  };
  const arrows = () => {
    pen.strokeStyle = pen.fillStyle = ink.front;
    lines.forEach(({ wait, from, to }) => {
      if ((wait.end - wait.start) / (high - low) * (wide - GUTTER) < 8) return;
      const x = xOf(wait.end), [a, b] = [from, to].map((row) => row.top - top + row.tall / 2);
      if (x < GUTTER || x > wide || Math.max(a, b) > tall - AXIS + 10 || b < 0) return;
      pen.beginPath(); pen.moveTo(x, a); pen.lineTo(x, b); pen.stroke();
      pen.beginPath(); pen.arc(x, b, 3.5, 0, 7); pen.fill();
    });
  };
  const now = () => {
    frame = 0;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = ink.ground;
    pen.fillRect(0, 0, canvas.width - image.width, canvas.height);
    pen.fillRect(0, image.height, canvas.width, canvas.height);
    paint();
    pen.putImageData(image, canvas.width - image.width, 0);
    write();
    arrows();
    axis();
    if (hover) {
      const row = rows[hover.row], [a, b] = [xOf(row.pieces.start[hover.piece]), xOf(row.pieces.end[hover.piece])];
      pen.strokeStyle = ink.front;
      pen.lineWidth = 2;
      pen.strokeRect(Math.max(a, GUTTER), row.top - top, Math.max(Math.min(b, wide) - Math.max(a, GUTTER), 2), row.tall);
      pen.lineWidth = 1;
    }
  };
  const draw = () => { frame = frame || requestAnimationFrame(now); };

  const say = () => {
    if (!hover) { says.textContent = HINT; return; }
    const row = rows[hover.row], { pieces, bundle } = row, i = hover.piece, at = pieces.start[i];
    const what = row.lane ? step.names[pieces.of[i]] : data.classes[pieces.of[i]];
    const calls = !row.lane && !row.isBelow && pieces.of[i] !== 0 && !isIdle[pieces.of[i]] && (row.rank.lanes || []).find((lane) => lane.name === "communication");
    let call = "";
    if (calls) {
      const others = piecesOf(calls, true), place = before(others, (at + pieces.end[i]) / 2);
      if (place >= 0 && others.end[place] > at) call = `, ${step.names[others.of[place]]}`;
    }
    const from = duration(at * step.unit_ns), said = row.isBelow ? below.said : data.said;
    says.textContent = `${bundle ? `${bundle.name}, ` : ""}rank ${row.rank.rank}${row.lane ? `, ${row.lane.name}` : ""}${said ? `, ${said}` : ""}: ${what}${call}, ${duration((pieces.end[i] - at) * step.unit_ns)} from ${from}`;
  };
  const point = (row, piece) => { hover = row >= 0 && rows[row].pieces && piece >= 0 && piece < rows[row].pieces.start.length ? { row, piece } : null; say(); draw(); };
  const pointAt = (x, y) => {
    const row = x > GUTTER && y < tall - AXIS ? rowAt(y) : -1;
    if (row < 0 || !rows[row].pieces) { point(-1, -1); return; }
    const time = timeAt(x), place = before(rows[row].pieces, time), slack = 3 * (high - low) / (wide - GUTTER);
    point(row, place >= 0 && time <= rows[row].pieces.end[place] + (rows[row].lane ? slack : 0) ? place : -1);
  };

  // Moving
  const clamp = () => {
    const span = Math.min(Math.max(high - low, Math.min(64, scale)), scale);
    low = Math.max(0, Math.min(low, scale - span));
    high = low + span;
  };
  const zoom = (factor, x = (wide + GUTTER) / 2) => {
    const at = timeAt(x), span = Math.min(Math.max((high - low) / factor, Math.min(64, scale)), scale);
    low = at - (at - low) / (high - low) * span;
    high = low + span;
    clamp();
  };
  const whole = () => { low = 0; high = scale; };
  const pan = (pixels, down = 0) => {
    const moved = Math.trunc(rest += pixels * ratio), by = moved / image.width * (high - low); // whole pixels: what was painted is moved
    rest -= moved;
    low += by; high += by; clamp();
    top = Math.max(0, Math.min(top + down, total - tall + AXIS));
  };
  const toggle = (row) => {
    if (!row || !row.canOpen) return;
    const [set, key] = row.bundle ? [unfolded, `${rankList.value} ${row.bundle.name}`] : [opened, row.rank.rank];
    if (!set.delete(key)) set.add(key);
    layOut(); draw();
  };
  canvas.addEventListener("wheel", (event) => {
    const isMoving = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!isMoving && document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (isMoving) pan(event.deltaX || event.deltaY); else zoom(Math.exp(-event.deltaY / 400), Math.max(event.offsetX, GUTTER));
    draw();
  }, { passive: false });
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, [event.offsetX, event.offsetY]); moved = 0; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    const was = fingers.get(event.pointerId), is = [event.offsetX, event.offsetY];
    if (!was) { pointAt(...is); return; }
    const other = [...fingers].find(([id]) => id !== event.pointerId);
    if (other) {
      const [a, b] = [was, is].map((at) => Math.max(Math.abs(at[0] - other[1][0]), 8));
      zoom(b / a, (is[0] + other[1][0]) / 2);
    }
    moved += Math.abs(is[0] - was[0]) + Math.abs(is[1] - was[1]);
    pan(other ? (was[0] - is[0]) / 2 : was[0] - is[0], event.pointerType === "mouse" ? was[1] - is[1] : 0);
    fingers.set(event.pointerId, is);
    draw();
  });
  const release = (event) => fingers.delete(event.pointerId);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !fingers.size) point(-1, -1); });
  canvas.addEventListener("pointerup", (event) => {
    release(event);
    if (moved > 5) return;
    const row = rowAt(event.offsetY);
    chosen = row;
    if (row >= 0 && event.offsetX < GUTTER && event.offsetY < tall - AXIS) toggle(rows[row]); else pointAt(event.offsetX, event.offsetY);
    draw();
  });
  const stepTo = (by) => {
    for (let i = chosen + by; i >= 0 && i < rows.length; i += by) if (rows[i].pieces || rows[i].canOpen) { chosen = i; break; }
    const row = rows[chosen];
    if (!row) return;
    top = Math.max(0, Math.min(Math.max(top, row.top + row.tall - tall + AXIS), row.top));
    if (row.pieces) point(chosen, Math.max(before(row.pieces, (low + high) / 2), 0)); else { point(-1, -1); says.textContent = `${row.bundle.name}: ${row.bundle.ranks.length} ranks. Enter folds them.`; }
  };
  const next = (by) => {
    if (chosen < 0) { stepTo(1); return; }
    const { pieces } = rows[chosen];
    if (!pieces) return;
    point(chosen, Math.min(Math.max((hover && hover.row === chosen ? hover.piece : before(pieces, low)) + by, 0), pieces.start.length - 1));
    if (hover) { const at = rows[chosen].pieces.start[hover.piece]; if (at < low || at > high) { const span = high - low; low = at - span / 2; high = low + span; clamp(); } }
  };
  const keys = {
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), "0": whole,
    ArrowLeft: () => pan(-80), ArrowRight: () => pan(80), ArrowUp: () => stepTo(-1), ArrowDown: () => stepTo(1),
    Enter: () => toggle(rows[chosen]), " ": () => toggle(rows[chosen]), ",": () => next(-1), ".": () => next(1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
    draw();
  });

  // A finding leads to its ranks, and to the wait that they cause
  const show = (found) => {
    const place = data.steps.findIndex((one) => found.steps.includes(one.step));
    stepList.value = String(Math.max(place, 0));
    marked = new Set(found.ranks);
    if (found.ranks.length && isAlike && found.ranks.some((rank) => !data.groups.some((group) => group.shown === rank))) rankList.value = "all";
    layOut();
    const waits = step.waits.filter((wait) => marked.has(wait.late_rank)).sort((a, b) => b.wait_ns - a.wait_ns);
    whole();
    if (waits.length) {
      const margin = Math.max(waits[0].end - waits[0].start, scale / 20);
      low = waits[0].start - margin; high = waits[0].end + margin;
      clamp();
    }
    chosen = rows.findIndex((row) => row.rank && marked.has(row.rank.rank));
    if (chosen >= 0) top = Math.max(0, Math.min(rows[chosen].top - 40, total - tall + AXIS));
    figure.scrollIntoView({ block: "start" });
    canvas.focus({ preventScroll: true });
    const [wait] = waits, others = wait && `${wait.num_waiting} ${wait.num_waiting === 1 ? "waits" : "wait"} ${duration(wait.wait_ns)}${wait.num_waiting === 1 ? "" : " together"}`;
    says.textContent = wait ? `${wait.name}: rank ${wait.late_rank} begins last, ${others}` : marked.size ? `${marked.size === 1 ? `Rank ${found.ranks[0]} has` : `${marked.size} ranks have`} a bar beside the row.` : HINT;
    draw();
  };
  data.found.forEach((found) => {
    const article = document.getElementById(found.anchor);
    if (!article) return;
    const button = made("button", "Show in the picture", { type: "button", class: "show" });
    button.addEventListener("click", () => show(found));
    (article.querySelector(".fix") || article).after(button);
  });

  const fresh = () => { readInk(); layOut(); draw(); };
  new ResizeObserver(() => { if (Math.max(figure.clientWidth, 240) !== wide) { layOut(); draw(); } }).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fresh);
  document.getElementById("theme").addEventListener("click", fresh);
  readInk();
  layOut();
  now();
  // What other rows will need is unpacked while nothing else is to do
  const packedYet = [...data.steps[0].ranks];
  const unpack = (spare) => {
    while (packedYet.length && spare.timeRemaining() > 2) piecesOf(packedYet.pop());
    if (packedYet.length) requestIdleCallback(unpack);
  };
  if (globalThis.requestIdleCallback) requestIdleCallback(unpack);
})();
