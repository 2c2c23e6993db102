// Not a module, so that it runs before anything is painted: a dark page must not flash white.
try {
  const chosen = localStorage.getItem("headgate-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is off: the system's choice it is.
}
