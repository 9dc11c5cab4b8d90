"use strict";
var report = typeof report === "undefined" ? { index: null } : report;

/** The JSON of an element: gzip in base64. */
report.inflate = async function (id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

/** Read the index. */
report.load = async function () {
  report.index = await report.inflate("index");
  return report.index;
};
