// A report over many regions: the parent enqueues one job for each, waits for all of them without holding a slot, and adds up their results.
// One region fails, and the parent goes on without it. Outside of this repository write:
//   import { job, open, TerminalError } from "outlive";
import * as z from "zod";
import { job, open, TerminalError } from "../src/index.ts";

const Sales = z.object({ region: z.string(), cents: z.number() });

const region = job("region", { input: z.object({ region: z.string() }), output: Sales });

region.handle(({ region: name }) => {
  if (name === "atlantis") throw new TerminalError("there is no such region");
  return { region: name, cents: name.length * 1_000 };
});

const report = job<{ regions: string[] }, { cents: number; missing: string[] }>("report");

report.handle(async ({ regions }, run) => {
  // A later attempt enqueues the same children again, which adds nothing: their ids are made of this job's id and their input.
  const ids = await run.enqueueMany(
    region,
    regions.map((name) => ({ region: name })),
  );
  const ends = await run.wait(ids, { timeout: "1h" });
  const cents = ends.reduce((sum, end) => sum + (end.state === "succeeded" ? end.result.cents : 0), 0);
  const missing = ends.flatMap(({ state }, n) => (state === "succeeded" ? [] : [`${regions[n]} (${state})`]));
  return { cents, missing };
});

const strict = job<{ regions: string[] }, number>("strict-report", { retry: { attempts: 1 } });

strict.handle(async ({ regions }, run) => {
  const ids = await run.enqueueMany(
    region,
    regions.map((name) => ({ region: name })),
  );
  // Throws CHILD_FAILED if one of them did not succeed.
  const sales = await run.results(ids);
  return sales.reduce((sum, { cents }) => sum + cents, 0);
});

await using engine = await open("sqlite:./reports.db", { jobs: [region, report, strict], logger: false });

// One slot is enough: a parent that waits leaves it to its children.
await engine.start({ concurrency: 1 });
const { id } = await engine.enqueue(report, { regions: ["north", "south", "atlantis"] });
const { cents, missing } = await engine.result(id);
console.log(`${cents} cents; missing: ${missing.join(", ")}`);

const all = await engine.enqueue(strict, { regions: ["north", "south"] });
console.log(`${await engine.result(all.id)} cents, all there`);
const broken = await engine.enqueue(strict, { regions: ["north", "atlantis"] });
await engine.result(broken.id).catch((error: Error) => console.log(error.message));
