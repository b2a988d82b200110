// Jobs with limits per key, one or two of them, and events: enqueues whose dedupe key an unfinished job may hold, in the midst of its run, its
// backoff or its sleep. Keys are few, so that they are full most of the time. Jobs fail, sleep, are killed and cancelled, and hold their key off.
import type { LimitOptions } from "../../../src/engine/options.ts";
import type { TypedRun } from "../../../src/job/contract.ts";
import { TerminalError } from "../../../src/job/errors.ts";
import { FAIR, type JobKey, jobKey } from "../../../src/job/limits.ts";
import type { SeededRandom } from "../world/random.ts";
import { type HandlerOf, type KindFacts, ORDINARY, type Tools, type Workload } from "./workload.ts";

interface LimitedInput {
  readonly key: string;
  readonly way: "works" | "fails" | "sleeps" | "holds off" | "gives up" | "hangs" | "enqueues" | "ends";
  /** Tells inputs apart. */
  readonly number: number;
}

function limit(name: string, more: Omit<LimitOptions, "name" | "key">): LimitOptions {
  return { name, key: ({ key }: LimitedInput) => key, ...more };
}

const SINGLE = limit("single", { running: 1 });
const TENANT = limit("tenant", { running: 2 });
const TEAM = limit("team", { running: 4 });
const METER = limit("meter", { rate: 4, per: "2s", burst: 2 });
const ACCOUNT = limit("account", { order: "strict" });
const EVERYBODY: LimitOptions = { name: "everybody", running: 2 };

const LITTLE: KindFacts = { ...ORDINARY, timeoutMs: 2_500, limits: { errors: 3, timeouts: 2, crashes: 3 } };

function limited(...limits: readonly LimitOptions[]): KindFacts {
  return { ...LITTLE, limited: limits };
}

const KINDS = {
  single: limited(SINGLE),
  tenant: limited(TENANT),
  metered: limited(METER),
  ordered: limited(ACCOUNT),
  crossed: limited(TENANT, EVERYBODY),
  "ordered-crossed": limited(ACCOUNT, EVERYBODY),
  "metered-crossed": limited(EVERYBODY, METER),
  fair: { ...LITTLE, fair: ({ key }: LimitedInput) => key },
  "fair-tenant": { ...limited(TENANT), fair: "tenant" },
  "fair-crossed": { ...limited(EVERYBODY), fair: ({ key }: LimitedInput) => key },
  event: LITTLE,
  "limited-event": limited(SINGLE),
} satisfies Readonly<Record<string, KindFacts>>;

const DEBOUNCE = { wait: "600ms", max: "1500ms" } as const;
const THROTTLE_EVERY = "900ms";

export const keys: Workload = {
  name: "keys",
  share: 0.5,
  weight: 8,
  kinds: KINDS,

  wish(random) {
    const kind = random.weighted({
      single: 2,
      tenant: 2,
      metered: 2,
      ordered: 3,
      crossed: 2,
      "ordered-crossed": 2,
      "metered-crossed": 1,
      fair: 4,
      "fair-tenant": 2,
      "fair-crossed": 2,
      event: 6,
      "limited-event": 3,
    });
    const input = drawInput(random);
    if (kind !== "event" && kind !== "limited-event") return { kind, input };
    const key = input.key;
    const how = random.weighted({ rerun: 4, replace: 1, debounce: 3, throttle: 3 });
    // Of each key always the same wish: what two that contradict each other come to is not promised.
    if (how === "debounce") return { kind, input, dedupe: { debounce: { key: `calm-${key}`, ...DEBOUNCE } } };
    if (how === "throttle") return { kind, input, dedupe: { throttle: { key: `slow-${key}`, every: THROTTLE_EVERY } } };
    return { kind, input, dedupe: { dedupe: { key, then: how } } };
  },

  handlers: (tools) => handlersOf(KINDS, tools),
};

/**
 * Few kinds, none of them fair: only then SQLite claims jobs straight from their doors. So it is a seed's only workload. There are more keys than slots. A worker
 * remembers a door only until another process commits, so some jobs enqueue others of a key, which end at once: as many as the entries that it leaves behind.
 */
const DOOR_KINDS = {
  single: KINDS.single,
  tenant: KINDS.tenant,
  metered: KINDS.metered,
  crossed: KINDS.crossed,
  team: limited(TEAM),
  "team-crossed": limited(TEAM, EVERYBODY),
} satisfies Readonly<Record<string, KindFacts>>;

export const doors: Workload = {
  name: "doors",
  share: 0,
  weight: 8,
  kinds: DOOR_KINDS,

  wish(random) {
    const kind = random.weighted({ single: 3, tenant: 5, metered: 1, crossed: 1, team: 3 });
    const input = drawInput(random, ["a", "b", "c", "d", "e", "f"]);
    return { kind, input: kind === "team" && random.chance(0.4) ? { ...input, way: "enqueues" } : input };
  },

  handlers(tools) {
    const own = handlersOf(DOOR_KINDS, tools);
    const team = async (input: LimitedInput, run: TypedRun): Promise<unknown> => {
      const { key, number } = input;
      if (input.way !== "enqueues") return own["team"]!(input as never, run);
      const inputs = Array.from({ length: 24 + (number % 16) }, (_, n) => ({ key, way: "ends", number: n }));
      await run.enqueueMany(tools.contract("team"), inputs);
      // One with a second key among those that have only one, and then each while others end.
      await run.enqueue(tools.contract("team-crossed"), { key, way: "ends", number });
      for (let n = 100; n < 110; n++) await run.enqueue(tools.contract("team"), { key, way: "ends", number: n });
      return undefined;
    };
    return { ...own, team };
  },
};

function handlersOf(kinds: Readonly<Record<string, KindFacts>>, { work, random }: Tools): Record<string, HandlerOf> {
  const handler =
    (limitName: string | null) =>
    async ({ way }: LimitedInput, run: TypedRun): Promise<void> => {
      if (way === "ends") return;
      await work(random.chance(0.2) ? 1_200 : 300);
      if (way === "sleeps") await run.sleep(`${1 + random.below(1_500)}ms`, { name: "once" });
      if (way === "holds off" && limitName !== null) await run.holdOff(limitName, `${1 + random.below(2_000)}ms`);
      if (way === "hangs" && random.chance(0.5)) await new Promise(() => {});
      if (way === "gives up") throw new TerminalError("never");
      if (way === "fails" && random.chance(0.7)) throw new Error("not this time");
      await work(200);
    };
  return Object.fromEntries(
    Object.entries(kinds).map(([kind, facts]) => [kind, handler(facts.limited?.[0]?.name ?? null)]),
  );
}

function drawInput(random: SeededRandom, keys = ["a", "a", "b"]): LimitedInput {
  return {
    key: random.pick(keys),
    way: random.weighted({ works: 5, fails: 3, sleeps: 2, "holds off": 1, "gives up": 0.5, hangs: 0.5 }),
    number: random.below(1_000_000_000),
  };
}

/** The keys whose limits a person changes while everything works. */
export function limitedKeys(workloads: readonly Workload[]): readonly JobKey[] {
  const shared = [jobKey("single", "a"), jobKey("tenant", "a"), jobKey("everybody", "*")];
  if (workloads.includes(keys)) return [...shared, jobKey(FAIR, "b")];
  return workloads.includes(doors) ? shared : [];
}
