// Vercel's AI SDK: text, streams, tools and objects, over OpenAI's responses and chats, a compatible server, and Anthropic's messages.
import { createRequire } from "node:module";
import { MODEL, URL_, assert, check, clever, main } from "./checks.mjs";

const require = createRequire(process.env.CLIENT_HOME + "/node_modules/x.js");
const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { createAnthropic } = require("@ai-sdk/anthropic");

const openai = createOpenAI({ baseURL: `${URL_}/v1`, apiKey: "none" });
const models = {
  responses: openai(MODEL),
  chat: openai.chat(MODEL),
  compatible: createOpenAICompatible({ name: "headgate", baseURL: `${URL_}/v1` })(MODEL),
  messages: createAnthropic({ baseURL: `${URL_}/v1`, apiKey: "none" })(MODEL),
};
const parameters = jsonSchema({ type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"], additionalProperties: false });
const tools = {
  get_weather: tool({ description: "The weather in a city.", inputSchema: parameters, execute: async ({ city }) => `21 degrees in ${city}` }),
};

// By default it refers to items that OpenAI has stored; with store: false it sends them.
const providerOptions = { openai: { store: false } };

for (const [name, model] of Object.entries(models)) {
  check(`text by ${name}`, async () => {
    const { text, usage } = await generateText({ model, prompt: "Hello!", maxOutputTokens: 16, maxRetries: 0 });
    assert(text && usage.outputTokens > 0);
  });

  check(`a stream by ${name}`, async () => {
    let said = "";
    for await (const part of streamText({ model, prompt: "Hello!", maxOutputTokens: 16, maxRetries: 0 }).textStream) said += part;
    assert(said);
  });

  clever(`steps with a tool by ${name}`, async () => {
    const { text } = await generateText({ model, tools, providerOptions, prompt: "Call get_weather.", maxRetries: 0, stopWhen: stepCountIs(3) });
    assert(text === "The answer is 21 degrees in Paris", text);
  });

  clever(`streamed steps with a tool by ${name}`, async () => {
    let said = "";
    const run = streamText({ model, tools, providerOptions, prompt: "Call get_weather.", maxRetries: 0, stopWhen: stepCountIs(3) });
    for await (const part of run.textStream) said += part;
    assert(said.endsWith("The answer is 21 degrees in Paris"), said);
  });
}

check("an object by chat", async () => {
  const { object } = await generateObject({ model: models.chat, schema: parameters, prompt: "Where is the Louvre?", maxOutputTokens: 80, maxRetries: 0 });
  assert("city" in object);
});

await main();
