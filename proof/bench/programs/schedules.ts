// A worker that fires schedules, and how late each of them is: from its occurrence to the event after the commit, on the clock that all processes of one
// machine share. It also fills the store with schedules before it works, and measures what it costs while none is due.
import { setTimeout as delay } from "node:timers/promises";
import { type Engine, open, type ScheduleOptions } from "../../../src/index.ts";
import { setRow } from "../../../src/job/schedules.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { ScheduleDeclaration, specOf } from "../../../src/schedules/declaration.ts";
import { storeAt } from "../../../src/stores/registry.ts";
import { given, serve } from "../program.ts";
import { noop } from "./noop.ts";

export interface Plan {
  readonly count: number;
  /** How many are due in the same second. */
  readonly dueAtOnce: number;
  /** "never": nothing is due for years. */
  readonly timing: "every" | "cron" | "never";
}

export interface FiringCosts {
  readonly late: readonly number[];
  readonly cpuMs: number;
  readonly wallMs: number;
}

/** Calls in flight: those of one turn of the event loop share a transaction on SQLite. */
const AT_ONCE = 500;
/** As many zones as patterns may be asked for at once. */
const ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"] as const;

const { url } = given<{ url: string }>();
noop.handle(() => {});
let late: number[] = [];
const engine: Engine = await open(url, {
  jobs: [noop],
  logger: false,
  onEvent: (event) => {
    if (event.name === "schedule.fired") late.push(Date.now() - event.at);
  },
});

function optionsOf(n: number, { count, dueAtOnce, timing }: Plan): ScheduleOptions<{ n: number }> {
  const input = { n };
  if (timing === "never") return { every: "3650d", input };
  const seconds = count / dueAtOnce;
  if (timing === "every") return { every: `${seconds}s`, offset: `${n % seconds}s`, input };
  // Every second, so that a whole second of patterns costs few rows.
  return { cron: "* * * * * *", zone: ZONES[n % ZONES.length]!, input };
}

serve({
  /** As `engine.schedules.set` does it, without reading first: on PostgreSQL 100,000 calls of that take minutes. */
  fill: async (plan: Plan) => {
    const store = await storeAt(url).client(url, {}).open({ clock: systemClock, random: systemRandom });
    for (let from = 0; from < plan.count; from += AT_ONCE) {
      const some = Array.from({ length: Math.min(AT_ONCE, plan.count - from) }, (_, i) => from + i);
      const write = async (n: number): Promise<void> => {
        const declaration = new ScheduleDeclaration(`schedule-${n}`, noop as never, optionsOf(n, plan) as never);
        const { calendar, ...spec } = await specOf(declaration, "api", Date.now());
        await store.schedules!.write(setRow(null, spec, Date.now(), calendar.next)!);
      };
      await Promise.all(some.map(write));
    }
    await store.close();
  },
  work: async () => {
    await engine.start();
  },
  /** Resolves when what was due before this worker began has fired, and the last second was on time. */
  caughtUp: async () => {
    do {
      late = [];
      await delay(1_000);
    } while (late.length === 0 || Math.max(...late) > 1_000);
  },
  measure: async ({ ms }: { readonly ms: number }): Promise<FiringCosts> => {
    late = [];
    const from = performance.now();
    const cpu = process.cpuUsage();
    await delay(ms);
    const { user, system } = process.cpuUsage(cpu);
    return { late, cpuMs: (user + system) / 1_000, wallMs: performance.now() - from };
  },
});
