// A Writer that may add, in a conversation of two turns, and an Editor with an object as its answer, by the default provider.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const task = JSON.parse(readFileSync(0, "utf8"));
const add = tool({
  description: "Add two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => a + b,
});

const writer = { model: openai("Solver Agent"), tools: { add }, stopWhen: stepCountIs(2) };
const messages = [{ role: "user", content: task.prompt }];
const first = await generateText({ ...writer, messages });
messages.push(...first.responseMessages, { role: "user", content: "Once more." });
const second = await generateText({ ...writer, messages });
const verdict = await generateText({
  model: openai("Verifier Agent"),
  output: Output.object({ schema: z.object({ ok: z.boolean(), note: z.string() }) }),
  prompt: `Judge: ${second.text}`,
});
console.log(JSON.stringify(`${verdict.output.ok} ${verdict.output.note}`));
