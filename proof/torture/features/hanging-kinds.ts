// The kinds of the scenario in which SQL alone takes back the work of dead processes: the first workers never end a job, the later ones end each at once.
import { appendFileSync } from "node:fs";
import { type EngineOptions, job, type Run } from "../../../src/index.ts";

/** So short that the reclaim in SQL does not take long. */
export const HEARTBEAT: EngineOptions["heartbeat"] = { interval: "400ms", lease: "1s", probe: "50ms", sweep: "1s" };
export const CONCURRENCY = 100;

const history = process.env["OUTLIVE_FEATURES_HISTORY"];
const hangs = process.env["OUTLIVE_FEATURES_HANG"] === "1";

export interface Begun {
  readonly what: "began";
  readonly kind: string;
  readonly job: string;
  readonly key: string;
  readonly n: number;
}

/** Says that it began, and ends or not. */
async function begin(kind: string, { key, n }: { readonly key: string; readonly n: number }, run: Run): Promise<void> {
  const begun: Begun = { what: "began", kind, job: run.id, key, n };
  if (history !== undefined) appendFileSync(history, `${JSON.stringify(begun)}\n`);
  if (hangs) await new Promise(() => {});
}

interface Keyed {
  readonly key: string;
  readonly n: number;
}

const limits = [{ name: "one", key: ({ key }: Keyed) => key, running: 1 }];

/** A reclaim ends these, and gives their slot to the next. */
export const fragile = job<Keyed>("fragile", { onCrash: "fail", limits });
fragile.handle((input, run) => begin("fragile", input, run));
/** A reclaim queues these again. */
export const tough = job<Keyed>("tough", { onCrash: "retry", limits });
tough.handle((input, run) => begin("tough", input, run));
export const lined = job<Keyed>("lined", {
  onCrash: "fail",
  limits: [{ name: "line", key: ({ key }) => key, order: "strict" }],
});
lined.handle((input, run) => begin("lined", input, run));

export const child = job<Keyed>("child", { onCrash: "fail" });
child.handle((input, run) => begin("child", input, run));
export const waiter = job<Keyed>("waiter");
waiter.handle(async ({ key, n }, run) => {
  const inputs = Array.from({ length: n }, (_, i) => ({ key: `${key}/${i}`, n: i }));
  const ends = await run.wait(await run.enqueueMany(child, inputs));
  await begin("waiter", { key, n: ends.filter(({ state }) => state === "dead").length }, run);
});

/** Events that come while their job runs: some end by the reclaim, some are queued again. */
export const fragileEvent = job<Keyed>("fragile-event", { onCrash: "fail" });
fragileEvent.handle((input, run) => begin("fragile-event", input, run));
export const toughEvent = job<Keyed>("tough-event", { onCrash: "retry" });
toughEvent.handle((input, run) => begin("tough-event", input, run));

export const KINDS = [fragile, tough, lined, child, waiter, fragileEvent, toughEvent] as const;
