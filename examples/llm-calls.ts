// Calls of a slow API, hundreds in flight in one process, each followed by a callback that runs once; with LARGE=1 thousands, of two minutes each. Outside of this
// repository write:
//   import { open } from "outlive";
//   import { request, secret } from "outlive/requests";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import * as z from "zod";
import { open } from "../src/index.ts";
import { request, secret } from "../src/requests.ts";

const { calls, inFlight, answerMs } = process.env["LARGE"]
  ? { calls: 5_000, inFlight: 5_000, answerMs: 120_000 }
  : { calls: 500, inFlight: 400, answerMs: 500 };

// Stands for the API: each answer takes a while.
let most = 0;
let now = 0;
const api = createServer((incoming, response) => {
  most = Math.max(most, ++now);
  let text = "";
  incoming.on("data", (chunk: Buffer) => (text += chunk.toString()));
  incoming.on("end", () =>
    setTimeout(() => {
      now--;
      response.end(JSON.stringify({ output: `summary of ${(JSON.parse(text) as { input: string }).input}` }));
    }, answerMs),
  );
});
await new Promise<void>((resolve) => api.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${(api.address() as AddressInfo).port}/v1/responses`;

const summarize = request("summarize", {
  input: z.object({ doc: z.string() }),
  response: z.object({ output: z.string() }),
  method: "POST",
  ifUnknown: "resend", // a second response costs money, a lost one costs more
  send: ({ doc }) => ({
    url,
    headers: { authorization: secret("LLM_KEY", { prefix: "Bearer " }) },
    json: { model: "large", input: doc },
  }),
  timeouts: { headers: "6m", total: "7m" },
  addresses: "any", // the API of this example is on this machine
});

const summaries = new Map<string, string>();
summarize.onResponse(({ input, body }) => void summaries.set(input.doc, body.output));

await using engine = await open("sqlite::memory:", {
  jobs: [summarize],
  secrets: { LLM_KEY: () => "the key, from wherever it is kept" },
  logger: false,
});
await engine.enqueueMany(
  summarize,
  Array.from({ length: calls }, (_, n) => ({ doc: `document ${n}` })),
);
await engine.runUntilIdle({ concurrency: { summarize: inFlight, "summarize.response": 20 } });
const words = most > 1_000 ? "thousands" : most > 100 ? "hundreds" : most;
console.log(`${summaries.size} summaries, ${words} in flight at once`);
console.log(summaries.get("document 7"));
api.close();
api.closeAllConnections();
