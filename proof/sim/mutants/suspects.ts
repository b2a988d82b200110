// With how many others suspects run.
import { withVerbs } from "../../../src/stores/observed.ts";
import { CULPRIT, TWO_KILLS } from "../isolation.ts";
import { rewriting } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

/** Many deaths make many suspects. */
const SUSPECTS = only(
  ["money", "naps"],
  { kill: 2, killAll: 1 },
  {
    workers: 1,
    jobs: 30,
    faultsMs: 14_000,
    concurrency: 3,
    locksProve: true,
    sessions: false,
    nemesisEveryMs: 500,
    slow: 0,
    stall: 0,
    requestLost: 0,
    answerLost: 0,
  },
);

export const suspectMutants: readonly Mutant[] = [
  {
    name: "suspectsAhead",
    what: "what is claimed ahead may be a suspect",
    focus: { ...SUSPECTS, ahead: 8 },
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, { ahead = 0, ...room }) =>
          store.turn(worker, settlements, {
            ...room,
            total: room.total + ahead,
            kinds: room.kinds.map((kind) => ({ ...kind, room: kind.room + ahead })),
          }),
      }),
  },
  {
    name: "aheadPastAGate",
    what: "jobs are claimed ahead while others wait at the gate of their kind",
    focus: only(["keys"], {}, { jobs: 60, durability: "full", workers: 2, concurrency: 1, ahead: 8 }),
    store: (store) =>
      withVerbs(store, {
        turn: async (worker, settlements, room) => {
          const answer = await store.turn(worker, settlements, room);
          const kinds = room.kinds.filter((kind) => kind.fair);
          if (!answer.live || room.ahead === undefined || answer.claimed.length < room.total || kinds.length === 0)
            return answer;
          const more = await store.turn(worker, [], { total: 1, kinds });
          return { ...answer, claimed: [...answer.claimed, ...more.claimed] };
        },
      }),
  },
  {
    name: "aheadTwice",
    what: "twice as many jobs are claimed ahead as were asked for",
    focus: { ...SUSPECTS, ahead: 3 },
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) =>
          store.turn(worker, settlements, room.ahead === undefined ? room : { ...room, ahead: 2 * room.ahead }),
      }),
  },
  {
    name: "limitedAhead",
    what: "jobs of kinds with a rate are claimed ahead",
    focus: only(["keys"], {}, { jobs: 60, durability: "full", workers: 2, concurrency: 1, ahead: 8 }),
    asks: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) => {
          const kinds = room.kinds.map((kind) => ({ ...kind, ahead: true }));
          return store.turn(worker, settlements, room.total === 0 ? room : { ...room, kinds, ahead: 8 });
        },
      }),
  },
  {
    name: "suspectsCrowded",
    what: "a worker is given suspects as if it held none",
    focus: SUSPECTS,
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, { total, kinds }) => store.turn(worker, settlements, { total, kinds }),
      }),
  },
  {
    name: "suspectsUnbounded",
    what: "the store gives out suspects however few others each may run with",
    focus: SUSPECTS,
    connection: rewriting(["WHEN together > 0 THEN together", "WHEN together > 0 THEN 99"]),
  },
  {
    name: "boundForgotten",
    what: "a suspect that waits may soon run with any number again: the job that kills is never alone",
    focus: CULPRIT,
    store: (store, db) =>
      withVerbs(store, {
        turn: (worker, settlements, room) => {
          db.sql("UPDATE outlive_jobs SET together = 1000 WHERE state = 0 AND together > 0").run();
          return store.turn(worker, settlements, room);
        },
      }),
  },
  {
    name: "suspectsOneByOne",
    what: "a worker runs one suspect at a time, whatever it may run with",
    focus: TWO_KILLS,
    asks: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) =>
          store.turn(worker, settlements, {
            ...room,
            suspects: { count: 0, oldestFirst: false, ...room.suspects, together: 1 },
          }),
      }),
  },
];
