// Promise 12: what follows from the end of an attempt is there from the same event on, once; and nothing follows from an attempt that did
// not end, or ended in another way.
import { PROLOGUE, SEQUEL, sequelOf } from "../workloads/sequels.ts";
import { OUTCOME, STATE, STATE_NAMES } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

export class FollowLaw {
  onMoment(changes: readonly { readonly was: JobRow | null; readonly is: JobRow | null }[]): void {
    const due = new Set<string>();
    const added: string[] = [];
    for (const { was, is } of changes) {
      if (is === null) continue;
      if (was === null && is.kind === SEQUEL) added.push(is.id);
      // A corrupt job never began: the store ends it itself.
      const ended = was?.state === STATE.running && is.state !== STATE.running && is.outcome !== OUTCOME.corrupt;
      if (ended && is.kind === PROLOGUE) due.add(sequelOf(was, STATE_NAMES[is.state]!));
    }
    for (const id of added) demand(due.has(id), () => `${id} was enqueued, and no end of an attempt asked for it`);
    for (const id of due)
      demand(
        added.filter((one) => one === id).length === 1,
        () =>
          `an attempt ended, and what follows from it, ${id}, was enqueued ${added.filter((one) => one === id).length} times`,
      );
  }
}
