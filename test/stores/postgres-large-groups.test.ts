// Many large inputs and results at once, on a real server: written in several statements, and all of them there.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Engine, job, open } from "../../src/index.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

test("inputs and results of a mebibyte each arrive whole, however many come at once", async (t) => {
  const engines: Engine[] = [];
  t.after(() => Promise.all(engines.map((engine) => engine.close({ grace: "0ms" }))));
  const { url, schema } = await freshSchema(t);
  const gate = Promise.withResolvers<void>();
  let started = 0;
  const echo = job<string>("echo", { retry: { attempts: 1 } }).handle(async (input) => {
    if (++started === 12) gate.resolve();
    await gate.promise;
    if (input.startsWith("fails")) throw new Error(input);
    return input;
  });
  const engine = await open(url, { jobs: [echo], logger: false, postgres: { schema } });
  engines.push(engine);
  const inputs = Array.from({ length: 12 }, (_, n) =>
    `${n % 4 === 0 ? "fails" : "works"} ${n} `.padEnd(1_000_000, "x"),
  );
  const enqueued = await Promise.all(inputs.map((input) => engine.enqueue(echo, input)));
  await engine.start({ concurrency: 12 });
  await untilTrue(
    async () => (await engine.counts())[0]!,
    ({ succeeded, dead }) => succeeded === 9 && dead === 3,
    "all have ended",
  );
  for (const [n, { id }] of enqueued.entries()) {
    const { state, result, input, error } = (await engine.get(id))!;
    assert.equal(input, inputs[n]);
    if (state === "succeeded") assert.equal(result, inputs[n]);
    else assert.match(error!.message, /^fails \d+ x+… \(1000000 characters\)$/);
  }
});
