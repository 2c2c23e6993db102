// A browser's WebSocket (Node.js has the same class from 22 on; undici's before): a streamed chat, and a cancelled one.
import { createRequire } from "node:module";
import { MODEL, URL_, assert, check, main } from "./checks.mjs";

const require = createRequire(process.env.CLIENT_HOME + "/node_modules/x.js");
const Socket = globalThis.WebSocket ?? require("undici").WebSocket;
const where = `${URL_.replace("http", "ws")}/v1/chat/completions`;

function opened() {
  return new Promise((resolve, reject) => {
    const socket = new Socket(where);
    socket.onopen = () => resolve(socket);
    socket.onerror = () => reject(new Error("it could not be opened"));
  });
}

function heard(socket, until) {
  return new Promise((resolve) => {
    const said = [];
    socket.onmessage = ({ data }) => {
      said.push(data);
      if (until(data, said)) resolve(said);
    };
  });
}

const chat = (content, more) => JSON.stringify({ model: MODEL, messages: [{ role: "user", content }], stream: true, ...more });

check("a stream, and another one on the same socket", async () => {
  const socket = await opened();
  for (const turn of ["Hello!", "Again!"]) {
    const all = heard(socket, (data) => data === "[DONE]");
    socket.send(chat(turn, { max_tokens: 12 }));
    const said = (await all).slice(0, -1).map((data) => JSON.parse(data));
    assert(said.some((chunk) => chunk.choices[0]?.delta?.content));
  }
  socket.close();
});

check("an error is a message, and the socket lives on", async () => {
  const socket = await opened();
  const wrong = heard(socket, () => true);
  socket.send("no json");
  assert((await wrong)[0].includes("error"));
  const all = heard(socket, (data) => data === "[DONE]");
  socket.send(chat("Hello!", { max_tokens: 4 }));
  await all;
  socket.close();
});

await main();
