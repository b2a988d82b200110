// Bugs on purpose in the firing of schedules. The laws must find each of them, or they prove nothing.
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Firing, Schedules } from "../../../src/stores/schedules.ts";
import type { ScheduleRow } from "../../../src/job/schedules.ts";
import type { Clock } from "../../../src/job/time.ts";
import type { FiringDeps } from "../../../src/schedules/firing.ts";

export interface ScheduleMutant {
  readonly name: string;
  /** What is wrong with it. */
  readonly what: string;
  /** Instead of the real store. */
  readonly store?: (store: Store, clock: Clock) => Store;
  /** Instead of what one process fires with. */
  readonly deps?: (deps: FiringDeps) => FiringDeps;
}

/** Another way to fire. */
function firing(
  fire: (real: Schedules, firings: readonly Firing[]) => ReturnType<Schedules["fire"]>,
): Pick<ScheduleMutant, "store"> {
  return { store: (store) => withVerbs(store, { schedules: { fire: (firings) => fire(store.schedules!, firings) } }) };
}

/** The row is written as something else. */
function moving(change: (row: ScheduleRow, before: ScheduleRow | null) => ScheduleRow): Pick<ScheduleMutant, "store"> {
  return firing(async (real, firings) =>
    real.fire(
      await Promise.all(firings.map(async (one) => ({ ...one, row: change(one.row, await real.get(one.row.name)) }))),
    ),
  );
}

/** What is due is read as something else. */
function reading(change: (row: ScheduleRow) => ScheduleRow, aheadMs = 0): Pick<ScheduleMutant, "store"> {
  return {
    store: (store) =>
      withVerbs(store, {
        schedules: {
          async due(limit) {
            const read = await store.schedules!.due(limit);
            const due = read.due.map((one) => ({ ...one, row: change(one.row) }));
            return { ...read, due, now: read.now + aheadMs };
          },
        },
      }),
  };
}

let ownIds = 0;
/** Each process makes an id of its own for an occurrence. */
const withOwnIds = (one: Firing): Firing => ({
  ...one,
  jobs: one.jobs.map((job) => ({ ...job, draft: { ...job.draft, id: `own-${ownIds++}` } })),
});

export const SCHEDULE_MUTANTS: readonly ScheduleMutant[] = [
  {
    name: "firesWithoutGuard",
    what: "a worker that read that a schedule was due fires it, whatever another one has done since",
    ...firing(async (real, firings) =>
      real.fire(
        await Promise.all(
          firings.map(async (one) => {
            const present = await real.get(one.row.name);
            return withOwnIds({ ...one, row: { ...one.row, version: present!.version } });
          }),
        ),
      ),
    ),
  },
  {
    name: "firesTwice",
    what: "a firing is sent again under other ids, as if its answer had been lost",
    ...firing((real, firings) =>
      real.fire(firings.map((one) => ({ ...one, jobs: [...one.jobs, ...withOwnIds(one).jobs] }))),
    ),
  },
  {
    name: "movesBeforeItInserts",
    what: "the row moves in one transaction, and the jobs come in the next",
    store: (store, clock) =>
      withVerbs(store, {
        schedules: {
          async fire(firings) {
            const moved = await store.schedules!.fire(firings.map((one) => ({ ...one, jobs: [] })));
            // Where another process may die, this one does now and then.
            if (Math.floor(clock.now() / 1_000) % 7 === 0) return moved;
            const rows = await Promise.all(firings.map(({ row }) => store.schedules!.get(row.name)));
            return store.schedules!.fire(firings.map((one, i) => ({ ...one, row: rows[i]! })));
          },
        },
      }),
  },
  {
    name: "insertsApart",
    what: "the jobs are enqueued on their own, without the occurrence that they are for",
    store: (store) =>
      withVerbs(store, {
        schedules: {
          async fire(firings) {
            for (const { jobs } of firings) await store.enqueue(jobs.map(({ draft }) => draft));
            return store.schedules!.fire(firings.map((one) => ({ ...one, jobs: [] })));
          },
        },
      }),
  },
  {
    name: "clockAhead",
    what: "what is due is decided by a clock that is five minutes ahead",
    store: (store) =>
      withVerbs(store, {
        schedules: {
          async due(limit) {
            const rows = await store.schedules!.list(limit, null);
            const now = (await store.schedules!.now()) + 300_000;
            const due = rows.filter(({ dueAt }) => dueAt !== null && dueAt <= now);
            return { now, due: due.map((row) => ({ row, isKindPaused: false })), nextInMs: 60_000 };
          },
        },
      }),
  },
  {
    name: "skipsSilently",
    what: "occurrences that are skipped are not counted",
    ...moving((row, before) => ({ ...row, skipped: before?.skipped ?? row.skipped })),
  },
  {
    name: "moveLost",
    what: "the row stays where it was, and its jobs are inserted",
    ...moving((row, before) => ({ ...row, nextAt: before!.nextAt, dueAt: before!.dueAt! + 60_000 })),
  },
  {
    name: "jumpsOverTheRest",
    what: "after a firing the schedule goes on a day later",
    ...moving((row) => ({
      ...row,
      nextAt: row.nextAt === null ? null : row.nextAt + 86_400_000,
      dueAt: row.dueAt === null ? null : row.dueAt + 86_400_000,
    })),
  },
  {
    name: "dueForgotten",
    what: "a schedule that fired is not due again",
    ...moving((row) => ({ ...row, dueAt: null })),
  },
  {
    name: "oneLeaderFires",
    what: "only the first process fires, and when it dies none does",
    deps: (deps) =>
      deps.worker() === "worker-0"
        ? deps
        : {
            ...deps,
            store: withVerbs(deps.store, {}),
            clock: { ...deps.clock, after: (ms, task) => deps.clock.after(ms > 1_000_000 ? ms : 3_000_000_000, task) },
          },
  },
  {
    name: "overlapIgnored",
    what: "whether the job before has ended is not asked",
    deps: (deps) => ({ ...deps, store: withVerbs(deps.store, { inspect: { outcomes: async () => [] } }) }),
  },
  {
    name: "withinIgnored",
    what: "missed occurrences run however old they are",
    ...reading((row) => ({ ...row, withinMs: 365 * 86_400_000 })),
  },
  {
    name: "missedRunAll",
    what: "whatever the policy says, all missed occurrences run",
    ...reading((row) => ({ ...row, missed: "all" })),
  },
  {
    name: "declaredAnew",
    what: "a worker that starts plans the next occurrence of what it declares again, from now on",
    store: (store, clock) =>
      withVerbs(store, {
        schedules: {
          async get(name) {
            const row = await store.schedules!.get(name);
            if (row === null || row.origin !== "code") return row;
            const nextAt = row.nextAt === null ? null : Math.max(row.nextAt, clock.now() + 3_600_000);
            await store.schedules!.write({ ...row, nextAt, dueAt: nextAt });
            return { ...row, version: row.version + 1 };
          },
        },
      }),
  },
];
