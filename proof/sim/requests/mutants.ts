// Bugs on purpose in what requests ask of their store. The laws of requests must find each of them, or they prove nothing.
import type { JobDraft } from "../../../src/job/job.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { FencedWrite, Settlement, Store } from "../../../src/stores/port.ts";
import type { Mutant } from "../mutants/mutant.ts";

function isMark({ write }: FencedWrite): boolean {
  return write.type === "step" && write.name.startsWith("sent(");
}

const APPLIED = { is: "applied" } as const;

/** Turns whose settlements are changed before they reach the store. */
function settling(change: (settlement: Settlement) => Settlement): NonNullable<Mutant["asks"]> {
  return (store) =>
    withVerbs(store, { turn: (worker, settlements, room) => store.turn(worker, settlements.map(change), room) });
}

/** Writes for which something else is done. */
function writing(
  write: (store: Store, one: FencedWrite) => ReturnType<Store["write"]> | null,
): NonNullable<Mutant["asks"]> {
  return (store) =>
    withVerbs(store, {
      write: async (writes) => (await Promise.all(writes.map((one) => write(store, one) ?? store.write([one])))).flat(),
    });
}

function withoutKeys(draft: JobDraft): JobDraft {
  const { keys: _, ...rest } = draft;
  return rest;
}

export const REQUEST_MUTANTS: readonly Mutant[] = [
  {
    name: "requestMarkLost",
    what: "the mark that a request is sent is acknowledged and not written",
    asks: writing((_, one) => (isMark(one) ? Promise.resolve([APPLIED]) : null)),
  },
  {
    name: "requestMarkLate",
    what: "the mark that a request is sent is written after it is acknowledged",
    asks: writing((store, one) => {
      if (!isMark(one)) return null;
      void store.write([one]).catch(() => {});
      return Promise.resolve([APPLIED]);
    }),
  },
  {
    name: "requestMarkUnfenced",
    what: "a process that lost a request marks it as sent all the same, and sends it",
    asks: writing((store, one) =>
      isMark(one) ? store.write([one]).then((answers) => answers.map(() => APPLIED)) : null,
    ),
  },
  {
    name: "requestMarkForgotten",
    what: "the attempt after a death does not see the mark of the one before",
    asks: (store) =>
      withVerbs(store, {
        turn: async (worker, settlements, room) => {
          const answer = await store.turn(worker, settlements, room);
          return { ...answer, claimed: answer.claimed.map((job) => ({ ...job, steps: [] })) };
        },
      }),
  },
  {
    name: "requestCallbackLost",
    what: "the end of a request is written without its callback",
    asks: settling((settlement) => ({ ...settlement, change: { ...settlement.change, follow: [] } })),
  },
  {
    name: "requestCallbackTwice",
    what: "the end of a request is followed by its callback under two ids",
    asks: settling((settlement) => {
      const { follow } = settlement.change;
      if (!follow) return settlement;
      const again = follow.map((draft) => ({ ...draft, id: `${draft.id}.again` }));
      return { ...settlement, change: { ...settlement.change, follow: [...follow, ...again] } };
    }),
  },
  {
    name: "requestOrderForgotten",
    what: "requests of one key are claimed without waiting for the one before",
    asks: (store) =>
      withVerbs(store, {
        enqueue: (drafts) => store.enqueue(drafts.map(withoutKeys)),
      }),
  },
  {
    name: "requestFailedUnsettled",
    what: "a request that failed is queued again for a day instead of ending",
    asks: settling((settlement) =>
      settlement.change.to === "dead"
        ? { ...settlement, change: { ...settlement.change, to: "queued", delayMs: 86_400_000 } }
        : settlement,
    ),
  },
];
