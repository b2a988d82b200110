// `commit`: the user's rows and the job's success are one transaction, once.
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Mutant } from "./mutant.ts";

export const commitMutants: readonly Mutant[] = [
  {
    name: "commitInTwoParts",
    what: "the user's rows are a transaction before the one of the success",
    store: (store) =>
      withVerbs(store, {
        transactions: {
          async commit(settlement, body, encode, control) {
            const { value } = await store.transactions!.transact(body);
            return store.transactions!.commit(settlement, () => value, encode, control);
          },
        },
      }),
  },
  {
    name: "commitBodyTwice",
    what: "the user's body is run again in the same transaction, as a careless retry would",
    store: (store) =>
      withVerbs(store, {
        transactions: {
          commit: (settlement, body, encode, control) =>
            store.transactions!.commit(
              settlement,
              (tx) => {
                if (settlement.lease.fence > 1) void body(tx);
                return body(tx);
              },
              encode,
              control,
            ),
        },
      }),
  },
  {
    name: "commitNotSettled",
    what: "the user's rows are written and the job is left to the next turn",
    store: (store) =>
      withVerbs(store, {
        transactions: {
          async commit(_settlement, body) {
            return { answer: { is: "applied" }, ...(await store.transactions!.transact(body)) };
          },
        },
      }),
  },
];
