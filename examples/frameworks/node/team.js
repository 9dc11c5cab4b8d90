// A Solver and a Verifier in Node with the npm client `openai`, which reads OPENAI_BASE_URL and OPENAI_API_KEY.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const task = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ maxRetries: 0 });
let discussion = "";
let solution = "";

async function say(agent, text) {
  const messages = [{ role: "user", content: text }];
  const reply = (await client.chat.completions.create({ model: agent, messages })).choices[0].message.content;
  discussion += `\n${agent.split(" ")[0]}: ${reply}`;
  return reply;
}

for (let loop = 1; loop <= 2; loop++) {
  solution = await say("Solver Agent", `Solve: ${task.prompt}${discussion}`);
  if (loop === 2) break;
  const verdict = await say("Verifier Agent", `Check: ${task.prompt}${discussion}`);
  if (verdict.includes("<verify>approve</verify>")) break;
}
const boxes = [...solution.matchAll(/\\boxed\{([^{}]*)\}/g)];
console.log(JSON.stringify(boxes.length ? boxes[boxes.length - 1][1] : ""));
