// OpenAI's client for Node.js: chat, stream, tools, structured answers, responses, embeddings.
import { createRequire } from "node:module";
import { MODEL, URL_, assert, check, main } from "./checks.mjs";

const require = createRequire(process.env.CLIENT_HOME + "/node_modules/x.js");
const OpenAI = require("openai").default ?? require("openai");
const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: "none", maxRetries: 0 });
const HELLO = [{ role: "user", content: "Hello!" }];
const parameters = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"], additionalProperties: false };
const WEATHER = { type: "function", function: { name: "get_weather", parameters } };

check("a chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages: HELLO, max_tokens: 12 });
  assert(answer.choices[0].message.content && answer.usage.completion_tokens > 0);
});

check("a stream", async () => {
  let said = "";
  const stream = await client.chat.completions.create({ model: MODEL, messages: HELLO, max_tokens: 12, stream: true });
  for await (const chunk of stream) said += chunk.choices[0]?.delta?.content ?? "";
  assert(said);
});

check("a demanded call, streamed", async () => {
  const runner = client.chat.completions.stream({
    model: MODEL, messages: HELLO, max_tokens: 80, tools: [WEATHER],
    tool_choice: { type: "function", function: { name: "get_weather" } },
  });
  const final = await runner.finalChatCompletion();
  assert("city" in JSON.parse(final.choices[0].message.tool_calls[0].function.arguments));
});

check("a structured answer", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "place", strict: true, schema: parameters } };
  const answer = await client.chat.completions.create({ model: MODEL, messages: HELLO, max_tokens: 60, response_format });
  assert("city" in JSON.parse(answer.choices[0].message.content));
});

check("a response, streamed", async () => {
  const stream = await client.responses.create({ model: MODEL, input: "Hello!", max_output_tokens: 16, stream: true });
  let last;
  for await (const event of stream) last = event;
  assert(["response.completed", "response.incomplete"].includes(last.type));
});

check("a response with a demanded call", async () => {
  const answer = await client.responses.create({
    model: MODEL, input: "Hello!", max_output_tokens: 80,
    tools: [{ type: "function", name: "get_weather", parameters, strict: true }],
    tool_choice: { type: "function", name: "get_weather" },
  });
  assert(answer.output.some((item) => item.type === "function_call"));
});

check("models", async () => {
  const found = [];
  for await (const model of client.models.list()) found.push(model.id);
  assert(found.length > 0);
});

check("a client that leaves", async () => {
  const stream = await client.chat.completions.create({ model: MODEL, messages: HELLO, max_tokens: 200, stream: true });
  for await (const chunk of stream) { if (chunk) break; }
  stream.controller.abort();
});

await main();
