// Jobs that wait without a slot: sleepers, listeners that read signals (the signaller sends them), and guardians that wait for wards, which end
// in every way a job can end. Some wards are shared: the first guardian that asks for one is its parent, and the others wait for a stranger.
import type { TypedRun } from "../../../src/job/contract.ts";
import { TerminalError } from "../../../src/job/errors.ts";
import type { JobDraft } from "../../../src/job/job.ts";
import type { Signal } from "../../../src/stores/port.ts";
import { sqlite } from "../../../src/stores/sqlite/transaction.ts";
import { noRows } from "../oracle/audit-rows.ts";
import type { SeededRandom } from "../world/random.ts";
import { type KindFacts, ORDINARY, type Workload } from "./workload.ts";

const LISTENER = "listener";
const GUARDIAN = "guardian";
const WARD = "ward";
const DEADLY_WARD = "deadly-ward";

/** How a ward ends, if nothing comes between. */
const WAYS = ["result", "nothing", "commit", "naps", "throws", "gives up", "deaf", "kills"] as const;

interface WardInput {
  readonly way: (typeof WAYS)[number];
  readonly number: number;
}

interface GuardianInput {
  readonly wards: readonly WardInput[];
  /** The number of a ward that other guardians ask for, too; null: none. */
  readonly shared: number | null;
  /** A guardian of its own that it waits for. */
  readonly ward: GuardianInput | null;
  /** For its first wait; then it waits for what is left without one. */
  readonly timeoutMs: number | null;
  /** It waits for the first of them alone before it waits for all of them. */
  readonly firstAlone: boolean;
}

interface ListenerInput {
  readonly signals: number;
  readonly timeoutMs: number | null;
}

const TRIED_LITTLE: KindFacts = { ...ORDINARY, timeoutMs: 1_500, limits: { errors: 2, timeouts: 2, crashes: 3 } };

export const waiting: Workload = {
  name: "waiting",
  share: 0.5,
  weight: 6,
  kinds: {
    sleeper: ORDINARY,
    [LISTENER]: ORDINARY,
    [GUARDIAN]: ORDINARY,
    [WARD]: TRIED_LITTLE,
    [DEADLY_WARD]: { ...ORDINARY, limits: { errors: 10, timeouts: 10, crashes: 2 }, poison: true },
  },

  wish(random) {
    const kind = random.weighted({ sleeper: 2, [LISTENER]: 3, [GUARDIAN]: 4 });
    if (kind === LISTENER) return { kind, input: drawListener(random) };
    if (kind === GUARDIAN) return { kind, input: drawGuardian(random, 1) };
    return { kind, input: Array.from({ length: 1 + random.below(3) }, () => Math.floor(random.between(1, 3_000))) };
  },

  handlers({ work, random, stepCame, commits, contract, process }) {
    const enqueueWard = async (run: TypedRun, input: WardInput, options: { id?: string } = {}): Promise<string> =>
      (await run.enqueue(contract(input.way === "kills" ? DEADLY_WARD : WARD), input, options)).id;

    const enqueueAll = async (run: TypedRun, { wards, shared, ward }: GuardianInput): Promise<string[]> => {
      const ids: string[] = [];
      for (const one of wards) {
        ids.push(await enqueueWard(run, one));
        if (random.chance(0.3)) await work(200);
      }
      if (shared !== null)
        ids.push(await enqueueWard(run, { way: "result", number: shared }, { id: `shared-${shared}` }));
      if (ward !== null) ids.push((await run.enqueue(contract(GUARDIAN), ward)).id);
      return ids;
    };

    return {
      async sleeper(naps: readonly number[], run) {
        for (const [i, ms] of naps.entries()) {
          await work(100);
          await run.sleep(`${ms}ms`, i === 1 ? { name: "second" } : {});
          if (random.chance(0.1)) throw new Error("a bad dream");
        }
      },

      async [LISTENER]({ signals, timeoutMs }: ListenerInput, run) {
        const heard: unknown[] = [];
        for (let i = 0; i < signals; i++) {
          if (random.chance(0.5)) await work(300);
          const options = timeoutMs === null ? {} : { timeout: `${timeoutMs}ms` as const };
          const payload = await run.waitForSignal(signalName(i), options);
          stepCame(run, `signal ${i}`, JSON.stringify(payload));
          heard.push(payload);
          if (random.chance(0.1)) throw new Error("between two signals");
        }
        return heard;
      },

      async [GUARDIAN](input: GuardianInput, run) {
        const ids = await enqueueAll(run, input);
        if (random.chance(0.1)) throw new Error("before the wait");
        if (input.firstAlone) await run.wait(ids.slice(0, 1));
        const options = input.timeoutMs === null ? {} : { timeout: `${input.timeoutMs}ms` as const };
        const seen = await run.wait(ids, options);
        stepCame(run, "wait", JSON.stringify(seen));
        if (random.chance(0.1)) throw new Error("after the wait");
        const unfinished = seen.filter(({ state }) => state === "queued" || state === "running");
        if (unfinished.length > 0) await run.wait(unfinished.map(({ id }) => id));
        return seen.length;
      },

      async [WARD]({ way, number }: WardInput, run) {
        await work(300);
        if (way === "throws") throw new Error("always");
        if (way === "gives up") throw new TerminalError("never");
        if (way === "deaf") await new Promise(() => {});
        if (way === "naps") await run.sleep(`${100 + 10 * number}ms`);
        if (way === "commit")
          return run.commit(sqlite, () => {
            commits(run);
            return { number };
          });
        return way === "nothing" ? undefined : { number };
      },

      async [DEADLY_WARD]() {
        await work(200);
        process.kill("poison");
        await new Promise(() => {});
      },
    };
  },

  audit(db) {
    noRows(
      db,
      `SELECT * FROM (
         SELECT j.id, j.result, json_group_array(json(ifnull(s.result, 'null')) ORDER BY s.ord) AS gave
         FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind LEFT JOIN outlive_steps s ON s.job = j.seq
         WHERE k.name = '${LISTENER}' AND j.state = 2 GROUP BY j.id)
       WHERE result IS NOT gave`,
      "listeners that heard something else than their waits kept",
    );
  },
};

/** Listeners wait for signals of two names in turn. */
function signalName(i: number): string {
  return i % 2 === 0 ? "go" : "stop";
}

function drawListener(random: SeededRandom): ListenerInput {
  return { signals: 1 + random.below(3), timeoutMs: random.chance(0.4) ? Math.floor(random.between(50, 4_000)) : null };
}

function drawGuardian(random: SeededRandom, depth: number): GuardianInput {
  const wards = Array.from({ length: 1 + random.below(3) }, (_, i) => {
    const ways = { result: 6, nothing: 2, commit: 2, naps: 2, throws: 1, "gives up": 1, deaf: 1, kills: 0.3 };
    return { way: random.weighted(ways), number: i };
  });
  return {
    wards,
    shared: random.chance(0.4) ? random.below(3) : null,
    ward: depth > 0 && random.chance(0.3) ? drawGuardian(random, depth - 1) : null,
    timeoutMs: random.chance(0.25) ? Math.floor(random.between(50, 3_000)) : null,
    firstAlone: random.chance(0.2),
  };
}

/** What is sent to the listeners among these jobs: to each as many signals as it waits for, under ids of their own. */
export function signalsFor(drafts: readonly JobDraft[]): Signal[] {
  return drafts.flatMap(({ id: job, kind, input }) => {
    if (kind !== LISTENER) return [];
    const { signals } = JSON.parse(input) as ListenerInput;
    return Array.from({ length: signals }, (_, i) => ({
      job,
      name: signalName(i),
      payload: JSON.stringify({ number: i }),
      id: `${job}/${i}`,
    }));
  });
}
