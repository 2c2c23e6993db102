// Renews the page's figures without loading it again.

const EVERY_MS = 2_000;

setInterval(async () => {
  if (document.hidden) return;
  const text = document.getElementById("verdict-text");
  try {
    const answer = await fetch("./", { cache: "no-store" });
    if (!answer.ok) throw new Error();
    const news = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(news.querySelector("main"));
    document.title = news.title;
  } catch {
    text.textContent = "No answer from the engine";
    text.parentElement.dataset.state = "critical";
    document.title = "No answer – Headgate engine";
  }
}, EVERY_MS);
