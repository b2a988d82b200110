// Compile-time tests of options: wrong durations and misspelt keys do not compile. Checked by `npm run typecheck`; nothing here
// runs.
import { connect } from "../../src/client.ts";
import {
  batch,
  collection,
  type Duration,
  type Engine,
  type EngineOptions,
  job,
  type Json,
  type KindOptions,
  open,
  schedule,
  type WorkOptions,
} from "../../src/index.ts";
import { request } from "../../src/requests.ts";

export const right: Duration[] = ["0ms", "250ms", "30s", "5m", "12h", "7d", "1.5h"];

// @ts-expect-error a number has no unit
export const number: Duration = 5_000;
// @ts-expect-error a text without a unit neither
export const unitless: Duration = "5";
// @ts-expect-error there is no such unit
export const weeks: Duration = "5w";
// @ts-expect-error units are short
export const minutes: Duration = "5min";
// @ts-expect-error and small
export const capital: Duration = "5S";
// "5 s", "-5s" and "1e3s" are numbers to the compiler; they are refused when the options are read.
// @ts-expect-error without a number
export const empty: Duration = "s";
// @ts-expect-error any text might be wrong
export const any: Duration = String("5s");

export const kind: KindOptions = { timeout: "none", maxRuntime: "1h", grace: "5s", onCrash: "requeue" };
// @ts-expect-error wrong duration
job("kind", { timeout: "5 minutes" });
// @ts-expect-error wrong duration
job("kind", { timeout: 60_000 });
// @ts-expect-error only a timeout can be none
job("kind", { grace: "none" });
// @ts-expect-error wrong duration
job("kind", { retry: { backoff: { base: "1" } } });
// @ts-expect-error a backoff function returns a duration
job("kind", { retry: { backoff: () => 5_000 } });
job("kind", { retry: { backoff: (failures, error) => (error.name === "Slow" ? "1m" : `${failures}s`) } });
// @ts-expect-error there is no such action
job("kind", { onCrash: "restart" });
// @ts-expect-error misspelt
job("kind", { timout: "5s" });

// @ts-expect-error wrong duration
export const heartbeat: EngineOptions = { heartbeat: { interval: 30 } };
// @ts-expect-error misspelt
export const misspelt: EngineOptions = { hartbeat: {} };
// @ts-expect-error wrong duration
export const poll: EngineOptions = { poll: "1sec" };
// @ts-expect-error there is no such durability
export const durability: EngineOptions = { durability: "none" };
// @ts-expect-error wrong duration
export const grace: WorkOptions = { grace: 25 };

export async function calls(engine: Engine): Promise<void> {
  // @ts-expect-error wrong duration
  await engine.close({ grace: 5 });
  // @ts-expect-error there is no such event
  engine.on("job.suceeded", () => {});
  engine.on("job.recovered", (event) => {
    const decision:
      | "retry"
      | "requeue"
      | "fail"
      | "quarantine"
      | "quarantine-row"
      | "cancel"
      | "lost"
      | "none"
      | "resend"
      | "unsent"
      | "ask"
      | "unknown" = event.decision;
    void decision;
    // @ts-expect-error there is no such field
    void event.decided;
  });
}

const mail = job("mail", { timeout: "5s" });
const hook = request("hook", { method: "GET", send: () => ({ url: "https://example.com" }) });
const rows = batch("rows");
const scan = collection("scan", { series: ["files"] });
const nightly = schedule("nightly", mail, { cron: "0 3 * * *", input: null });
const unnamed = job<{ n: number }>("unnamed");
const named = job<{ n: number }, Json, "named">("named");
// @ts-expect-error another name than the type argument
job<{ n: number }, Json, "named">("nmaed");

export async function kinds(): Promise<void> {
  const engine = await open("sqlite::memory:", { jobs: [mail, hook, rows, scan, nightly] });
  await engine.start({ concurrency: { mail: 2, hook: 100, "hook.response": 5, rows: 1, scan: 1 } });
  // @ts-expect-error misspelt
  await engine.start({ concurrency: { mial: 2 } });
  // @ts-expect-error the schedule is not a kind
  await engine.runUntilIdle({ concurrency: { nightly: 2 } });
  // TypeScript infers all type arguments or none: one job whose name it does not know, and any name compiles.
  const other = await open("sqlite::memory:", { jobs: [mail, unnamed] });
  await other.work({ concurrency: { unnamed: 2, mial: 1 } });
  const third = await open("sqlite::memory:", { jobs: [mail, named] });
  await third.work({ concurrency: { named: 2 } });
  // @ts-expect-error misspelt: the name is the third type argument
  await third.work({ concurrency: { nmaed: 2 } });
  // @ts-expect-error not made by job()
  await open("sqlite::memory:", { jobs: [{ name: "mail" }] });
  // @ts-expect-error a text
  await open("sqlite::memory:", { jobs: ["mail"] });
  // @ts-expect-error misspelt
  await open("sqlite::memory:", { jobs: [mail], hartbeat: {} });
  // @ts-expect-error not made by job()
  await connect("sqlite::memory:", { jobs: [{ name: "mail" }] });
  const any: Engine = engine;
  await any.start({ concurrency: { whatever: 1 } });
}
