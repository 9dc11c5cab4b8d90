report.load().then((index) => {
  document.getElementById("page").textContent = index.runs.map((run) => run.name).join(", ");
});
