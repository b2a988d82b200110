// What follows from the end of a job: not enqueued, enqueued once too often, or not in the transaction of that end.
import type { JobDraft } from "../../../src/job/job.ts";
import type { Change } from "../../../src/job/transitions.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Settlement, Store } from "../../../src/stores/port.ts";
import { type Mutant, only, zombies } from "./mutant.ts";

function withoutFollow(change: Change): Change {
  const { ifCancelled } = change;
  return { ...change, follow: [], ...(ifCancelled && { ifCancelled: withoutFollow(ifCancelled) }) };
}

function plain(settlement: Settlement): Settlement {
  return { ...settlement, change: withoutFollow(settlement.change) };
}

function followOf({ change }: Settlement): readonly JobDraft[] {
  return change.follow ?? [];
}

/** Enqueued in a transaction of its own, for which the answer of the turn does not wait: another law would notice that first. */
function later(store: Store, drafts: readonly JobDraft[]): void {
  if (drafts.length > 0) void store.enqueue(drafts).catch(() => {});
}

/** Turns whose settlements are changed before they reach the store. */
function settling(change: (settlement: Settlement) => Settlement): (store: Store) => Store {
  return (store) =>
    withVerbs(store, { turn: (worker, settlements, room) => store.turn(worker, settlements.map(change), room) });
}

export const followMutants: readonly Mutant[] = [
  {
    name: "followDropped",
    what: "the end of a job is written and what follows from it is not",
    focus: only(["sequels"], {}, {}),
    store: settling(plain),
  },
  {
    name: "followDroppedByRecovery",
    what: "a job whose worker died ends, and what follows from that is not enqueued",
    focus: only(["sequels"], { kill: 1 }, {}),
    store: (store) =>
      withVerbs(store, {
        takeBack: (request) =>
          store.takeBack({
            ...request,
            verdicts: request.verdicts.map((one) => ({ ...one, change: one.change && withoutFollow(one.change) })),
          }),
      }),
  },
  {
    name: "followDroppedByCommit",
    what: "a job succeeds by a commit, and what follows from that is not enqueued",
    focus: only(["sequels"], {}, {}),
    store: (store) =>
      withVerbs(store, {
        transactions: {
          commit: (settlement, body, encode, control) =>
            store.transactions!.commit(plain(settlement), body, encode, control),
        },
      }),
  },
  {
    name: "followTwice",
    what: "a settlement whose answer was lost is repeated, and what follows from it is enqueued again under another id",
    focus: only(["sequels"], {}, { answerLost: 0.1, durability: "full" }),
    store: (store) =>
      withVerbs(store, {
        async turn(worker, settlements, room) {
          const answer = await store.turn(worker, settlements, room);
          const again = settlements.filter((_, i) => answer.settled[i]!.is === "repeated").flatMap(followOf);
          later(
            store,
            again.map((draft) => ({ ...draft, id: `${draft.id}-again` })),
          );
          return answer;
        },
      }),
  },
  {
    name: "followOnStale",
    what: "a zombie's settlement is refused, and what would have followed from it is enqueued",
    focus: zombies("sequels"),
    store: (store) =>
      withVerbs(store, {
        async turn(worker, settlements, room) {
          const answer = await store.turn(worker, settlements, room);
          const refused = settlements.filter((_, i) => answer.settled[i]!.is === "stale").flatMap(followOf);
          later(store, refused);
          return answer;
        },
      }),
  },
  {
    name: "followOfTheOther",
    what: "a job ends as cancelled, and what follows is what would have followed without the cancel",
    focus: only(["sequels"], {}, { console: true }),
    store: settling((settlement) => {
      const { change } = settlement;
      const { follow, ifCancelled } = change;
      return follow && ifCancelled
        ? { ...settlement, change: { ...change, ifCancelled: { ...ifCancelled, follow } } }
        : settlement;
    }),
  },
  {
    name: "followInTwoParts",
    what: "what follows is enqueued in a transaction after the one of the end",
    focus: only(["sequels"], { kill: 1 }, {}),
    store: (store) =>
      withVerbs(store, {
        async turn(worker, settlements, room) {
          const answer = await store.turn(worker, settlements.map(plain), room);
          const applied = settlements.filter((_, i) => answer.settled[i]!.is === "applied").flatMap(followOf);
          later(store, applied);
          return answer;
        },
      }),
  },
];
