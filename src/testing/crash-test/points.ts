// Where a job's process can die so that something happens twice: around every durable step, and around the settlement. The points come in by
// wrapping the store port; the engine has no hook for this.
import type { Store } from "../../core/store.ts";

/** A point in the job's life, in words. */
export type Reached = (point: string) => void;

/** The store as it was, except that `reached` hears of every point before the process goes on. */
export function tellingStore(store: Store, jobId: string, reached: Reached): Store {
  const record: Store["record"] = async (writes) => {
    const names = writes.flatMap(({ lease, write }) =>
      lease.jobId === jobId && write.type === "step" ? [write.name] : [],
    );
    for (const name of names) reached(`after step "${name}" returned, before its result was kept`);
    const answers = await store.record(writes);
    for (const name of names) reached(`after the result of step "${name}" was kept`);
    return answers;
  };
  const settleAndClaim: Store["settleAndClaim"] = async (worker, settlements, room) => {
    const ours = settlements.some(({ lease }) => lease.jobId === jobId);
    if (ours) reached("after the handler returned, before that was settled");
    const answer = await store.settleAndClaim(worker, settlements, room);
    if (ours) reached("after the settlement was durable");
    if (answer.claimed.some(({ lease }) => lease.jobId === jobId)) reached("after the claim, before the handler ran");
    return answer;
  };
  const commit: Store["commit"] = async (settlement, body, encode, control) => {
    if (settlement.lease.jobId !== jobId) return store.commit(settlement, body, encode, control);
    reached("before the commit");
    const inside = ((tx: never) => {
      const value = body(tx);
      const told = <T>(result: T): T => {
        reached("inside the commit, before it was durable");
        return result;
      };
      return value instanceof Promise ? value.then(told) : told(value);
    }) as typeof body;
    const answer = await store.commit(settlement, inside, encode, control);
    reached("after the commit was durable");
    return answer;
  };
  const replaced: Partial<Store> = { record, settleAndClaim, commit };
  return new Proxy(store, {
    get(target, name) {
      const value: unknown = Reflect.get(replaced, name) ?? Reflect.get(target, name, target);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
}
