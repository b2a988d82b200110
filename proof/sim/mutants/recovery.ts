// Recovery: who is taken for dead, what becomes of their jobs, and who is blamed.
import type { CrashVerdict } from "../../../src/job/transitions.ts";
import { decideCrash } from "../../../src/recovery/recover.ts";
import type { Condemned, HeldJob, Verdict } from "../../../src/stores/port.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only, type StoreMutation } from "./mutant.ts";

/** What is decided about a job of a dead worker is something else. `rightly` decides as recovery does. */
function deciding(decide: (job: HeldJob, of: Condemned, rightly: typeof decideCrash) => CrashVerdict): StoreMutation {
  return (store) =>
    withVerbs(store, {
      takeBack: (request) => {
        const { of, verdicts } = request;
        if (of === null) return store.takeBack(request);
        const wrongly = ({ job, alone }: Verdict): Verdict => ({
          job,
          alone,
          ...decide(job, of, decideCrash),
          error: null,
        });
        return store.takeBack({ ...request, verdicts: verdicts.map(wrongly) });
      },
    });
}

/** The job as if it had crashed before. */
function asSuspect(job: HeldJob): HeldJob {
  return { ...job, counters: { ...job.counters, crashes: Math.max(1, job.counters.crashes) } };
}

export const recoveryMutants: readonly Mutant[] = [
  {
    name: "crashesNotCounted",
    what: "recovery queues again without counting: a job that kills its workers does so forever",
    store: deciding((job, of, rightly) => ({
      decision: "retry",
      change: { ...rightly(job, of).change, to: "queued", add: {} },
    })),
  },
  {
    name: "innocentsBlamed",
    what: "everybody in flight is blamed for a death, as if each had run alone",
    store: deciding((job, of, rightly) => rightly(asSuspect(job), { ...of, suspectsAtDeath: 1 })),
  },
  {
    name: "firstDeathBlamed",
    what: "a job that was the only one of its worker is blamed, although it has never crashed before",
    store: deciding((job, of, rightly) =>
      of.heldAtDeath === 1 ? rightly(asSuspect(job), { ...of, suspectsAtDeath: 1 }) : rightly(job, of),
    ),
  },
  {
    name: "quarantinedAtOnce",
    what: "every job in flight at a death is quarantined, whichever job killed",
    store: deciding((job, of, rightly) => ({
      decision: "quarantine",
      change: { ...rightly(job, of).change, to: "quarantined" },
    })),
  },
  {
    name: "nobodyBlamed",
    what: "no death is ever blamed on a job",
    store: deciding((job, of, rightly) => rightly(job, { ...of, suspectsAtDeath: 2 })),
  },
  {
    name: "neverHalved",
    what: "a suspect may run with as many others as died with it: the job that kills is never alone",
    store: deciding((job, of, rightly) => {
      const verdict = rightly(job, of);
      const together = Math.max(1, of.heldAtDeath);
      return {
        ...verdict,
        change: verdict.change.together === undefined ? verdict.change : { ...verdict.change, together },
      };
    }),
  },
  {
    name: "othersDeathsIgnored",
    what: "a job is quarantined although as many workers died that did not hold it",
    store: deciding((job, of, rightly) => rightly({ ...job, deathsElsewhere: 0 }, of)),
  },
  {
    name: "noHardLimit",
    what: "as long as others die, no job is ever quarantined",
    store: deciding((job, of, rightly) => {
      const { counters, deathsElsewhere } = job;
      return rightly(job, deathsElsewhere > counters.blamed ? { ...of, suspectsAtDeath: 2 } : of);
    }),
  },
  {
    name: "reaperWithoutGuard",
    what: "a silent worker is recovered although it has beaten since it was looked at",
    focus: only(["money"], { pause: 1 }, { workers: 4, ambush: 0.9, slow: 0.2, slowMs: 100 }),
    store: (store, db) =>
      withVerbs(store, {
        condemn(request) {
          const row = db.sql("SELECT beats FROM outlive_workers WHERE id = ?").get(request.worker.id);
          return store.condemn({
            ...request,
            worker: { ...request.worker, beats: (row?.["beats"] as number) ?? request.worker.beats },
          });
        },
      }),
  },
  {
    name: "liveTakenForDead",
    what: "a worker whose lock is held and who beats is taken for dead",
    store: (store) =>
      withVerbs(store, {
        async workers(query) {
          const rows = await store.workers(query);
          return rows.map((row) => ({ ...row, leaseMs: Math.min(row.leaseMs, 1_000) }));
        },
        condemn: (request) => store.condemn({ ...request, death: { ...request.death, how: "gone" } }),
      }),
  },
  {
    name: "overdueTooEarly",
    what: "jobs are fenced out before their grace has expired",
    store: (store) =>
      withVerbs(store, {
        heldBy: (query) =>
          store.heldBy(
            "overdue" in query
              ? { ...query, overdue: { ...query.overdue, marginMs: query.overdue.marginMs - 3_000 } }
              : query,
          ),
      }),
  },
  {
    name: "finishedRecoveredToo",
    what: "recovery requeues everything that the dead worker ever ran",
    store: (store, db) =>
      withVerbs(store, {
        async takeBack(request) {
          const answer = await store.takeBack(request);
          db.sql(
            "UPDATE outlive_jobs SET state = 0, lane = 1 WHERE state = 2 AND worker = (SELECT seq FROM outlive_workers WHERE id = ?)",
          ).run(request.of?.worker ?? null);
          return answer;
        },
      }),
  },
  {
    name: "incidentForgotten",
    what: "a recovery that goes on opens a second incident of the same death",
    store: (store, db) =>
      withVerbs(store, {
        condemn(request) {
          db.sql("UPDATE outlive_workers SET incident = NULL WHERE id = ? AND state = 'recovering'").run(
            request.worker.id,
          );
          return store.condemn(request);
        },
      }),
  },
  {
    name: "recoveredHalfway",
    what: "the first transaction of a recovery calls the worker gone, whatever is left",
    store: (store) =>
      withVerbs(store, {
        async heldBy(query) {
          if ("overdue" in query) return store.heldBy(query);
          const { jobs } = await store.heldBy({ ...query, limit: 1 });
          return { jobs, more: false };
        },
      }),
  },
];
