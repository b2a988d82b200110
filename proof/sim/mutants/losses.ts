// Losses of contact: what is counted without a proof, what is never resolved, resolved twice or wrongly, and who may take what.
import { type HowLost, isProof } from "../../../src/stores/liveness.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only } from "./mutant.ts";

/** Two hosts and a server; connections are cut and restored, and now and then a process dies. */
const CUT = only(
  ["money", "steps", "poison"],
  { cut: 3, kill: 1 },
  { workers: 4, sessions: true, hosts: 2, locksProve: true, slow: 0, stall: 0, requestLost: 0, answerLost: 0 },
);
/** Processes freeze until their work is taken, and some of them are killed then. */
const FROZEN = only(
  ["money", "steps"],
  { pause: 3, kill: 2 },
  { workers: 4, sessions: false, locksProve: true, slow: 0, stall: 0, requestLost: 0, answerLost: 0 },
);
export const lossMutants: readonly Mutant[] = [
  {
    name: "lossIsADeath",
    what: "a lost connection is counted as a crash at once, as if it proved a death",
    focus: CUT,
    asks: (store) =>
      withVerbs(store, {
        condemn: async (request) => {
          const condemned = await store.condemn(request);
          return typeof condemned === "object" && condemned
            ? { ...condemned, how: "gone" satisfies HowLost }
            : condemned;
        },
      }),
  },
  {
    name: "lossCountedUnresolved",
    what: "a loss is counted before anything is known of the worker",
    focus: CUT,
    store: (store, db) =>
      withVerbs(store, {
        async takeBack(request) {
          const answer = await store.takeBack(request);
          if (request.of && !isProof(request.of.how))
            for (const { job } of request.verdicts)
              db.sql(
                "UPDATE outlive_jobs SET crashes = crashes + 1, losses = losses - 1 WHERE id = ? AND losses > 0",
              ).run(job.id);
          return answer;
        },
      }),
  },
  {
    name: "returnIsADeath",
    what: "a worker that returned is counted as dead",
    focus: CUT,
    store: (store, db) =>
      withVerbs(store, {
        async register(worker) {
          const answer = await store.register(worker);
          db.sql("UPDATE outlive_incidents SET resolution = 'died' WHERE worker = ? AND resolution = 'returned'").run(
            worker.predecessor,
          );
          return answer;
        },
      }),
  },
  {
    name: "awayTooSoon",
    what: "a worker with which contact was lost is counted as dead as soon as it is looked at",
    focus: CUT,
    asks: (store) =>
      withVerbs(store, {
        losses: {
          async open() {
            const losses = await store.losses.open();
            return losses.map((loss) => ({ ...loss, worker: loss.worker && { ...loss.worker, leaseMs: 0 } }));
          },
        },
      }),
  },
  {
    name: "lateProofMissed",
    what: "a lost worker that has died since is not found out: only its absence counts, two leases later",
    focus: FROZEN,
    asks: (store) =>
      withVerbs(store, {
        losses: {
          resolve: async (worker, resolution) =>
            resolution === "died" ? null : store.losses.resolve(worker, resolution),
        },
      }),
  },
  {
    name: "lossNeverJudged",
    what: "what became of a lost worker never reaches its jobs: one that waits for it waits forever",
    focus: CUT,
    store: (store) => withVerbs(store, { losses: { open: async () => [] } }),
  },
  {
    name: "lossCountedTwice",
    what: "a loss is counted again with every pass",
    focus: CUT,
    store: (store, db) =>
      withVerbs(store, {
        losses: {
          async judge(incident, verdicts) {
            const closed = await store.losses.judge(incident, verdicts);
            for (const { job, change } of verdicts)
              if (change?.name === "countLoss" && job.state === "queued")
                db.sql("UPDATE outlive_jobs SET crashes = crashes + 1 WHERE seq = ? AND state = 0").run(job.row);
            return closed;
          },
        },
      }),
  },
  {
    name: "takenThoughItBeats",
    what: "a worker is taken for lost although its heartbeat has moved since it was looked at",
    focus: only(["money"], { pause: 1 }, { workers: 4, ambush: 0.9, slow: 0.2, slowMs: 100 }),
    store: (store, db) =>
      withVerbs(store, {
        condemn(request) {
          const row = db.sql("SELECT beats FROM outlive_workers WHERE id = ?").get(request.worker.id) as
            | { beats: number }
            | undefined;
          return store.condemn({
            ...request,
            worker: { ...request.worker, beats: row?.beats ?? request.worker.beats },
          });
        },
      }),
  },
  {
    name: "sessionProvesDeath",
    what: "a session that is missing is taken for a free lock: the end of a connection for the end of a process",
    focus: CUT,
    liveness: (liveness) => ({
      ...liveness,
      probe: async (worker) => {
        const probe = await liveness.probe(worker);
        return probe === "missing" ? "free" : probe;
      },
    }),
  },
  {
    name: "lostIsFresh",
    what: "a job whose loss is not resolved runs as if it were not a suspect",
    focus: CUT,
    store: (store, db) =>
      withVerbs(store, {
        turn(worker, settlements, room) {
          db.sql("UPDATE outlive_jobs SET lane = 1 WHERE state = 0 AND lane = 2 AND losses > 0").run();
          return store.turn(worker, settlements, room);
        },
      }),
  },
];
