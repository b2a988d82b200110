// What is kept of a job or of a death is not what it was.
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Mutant } from "./mutant.ts";

export const contentMutants: readonly Mutant[] = [
  {
    name: "inputChanged",
    what: "a job is stored with another input than was sent: a transfer moves twice the money",
    store: (store) =>
      withVerbs(store, {
        enqueue: (drafts) =>
          store.enqueue(
            drafts.map((draft) => ({
              ...draft,
              input: draft.input.replace(/"amount":(\d+)/, (_, amount) => `"amount":${2 * Number(amount)}`),
            })),
          ),
      }),
  },
  {
    name: "resultDropped",
    what: "a success is written without its result",
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) =>
          store.turn(
            worker,
            settlements.map((one) => ({ ...one, change: { ...one.change, result: null } })),
            room,
          ),
      }),
  },
  {
    name: "incidentNotKept",
    what: "of a death in which nothing was in flight no incident is kept",
    store: (store, db) =>
      withVerbs(store, {
        async takeBack(request) {
          const answer = await store.takeBack(request);
          if (request.of && request.last)
            db.sql("DELETE FROM outlive_incidents WHERE worker = ? AND held_at_death = 0").run(request.of.worker);
          return answer;
        },
      }),
  },
];
