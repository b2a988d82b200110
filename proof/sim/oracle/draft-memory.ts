// What was acknowledged, with its input: whatever happens to a job later, at the end its input is the one that was sent,
// or the one that took its place.
import type { Enqueued, JobDraft } from "../../../src/job/job.ts";
import type { Change } from "../../../src/job/transitions.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import type { Moment } from "./model.ts";
import { demand } from "./violation.ts";

export class DraftMemory {
  readonly #inputs = new Map<string, string>();
  /** All inputs that a job ever had, by its id. */
  readonly #former = new Map<string, Set<string>>();
  #isBack = false;

  onMoment({ answers }: Moment): void {
    for (const answer of answers) {
      if (answer.of === "enqueue") this.#sent(answer.drafts, answer.enqueued);
      if (answer.of === "turn") for (const { change } of answer.settlements) this.#follows(change);
      if (answer.of === "commit") this.#follows(answer.settlement.change);
      if (answer.of === "ofBatch") for (const { id, input } of answer.drafts) this.#keep(id, input);
      if (answer.of === "takeBack") for (const { change } of answer.verdicts) if (change) this.#follows(change);
      if (answer.of !== "write") continue;
      answer.writes.forEach(({ write }, i) => {
        const told = answer.answers[i];
        if (write.type === "enqueue" && told?.is === "applied") this.#sent(write.drafts, told.enqueued ?? []);
      });
    }
  }

  /** A draft that was answered with another job, which has its dedupe key, is nowhere. */
  #sent(drafts: readonly JobDraft[], enqueued: readonly Enqueued[]): void {
    enqueued.forEach(({ id, created, became }, i) => {
      const draft = drafts[i]!;
      if (created || became === "replaced") this.#keep(id, draft.input);
      // It becomes a job of its own later, or another event comes in its place.
      if (became === "rerun") this.#keep(draft.id, draft.input);
    });
  }

  #keep(id: string, input: string): void {
    this.#inputs.set(id, input);
    this.#former.set(id, (this.#former.get(id) ?? new Set()).add(input));
  }

  /** The rows are older ones, and an input that was replaced may be the former one again. */
  wentBack(): void {
    this.#isBack = true;
  }

  /** Whether it was applied, another law asks (follow-law.ts). */
  #follows({ follow = [], ifCancelled }: Change): void {
    for (const { id, input } of follow) this.#inputs.set(id, input);
    if (ifCancelled) this.#follows(ifCancelled);
  }

  audit(db: Database): void {
    const rows = db.sql("SELECT id, input FROM outlive_jobs").all() as unknown as { id: string; input: string }[];
    for (const { id, input } of rows)
      demand(
        this.#inputs.get(id) === input || (this.#isBack && this.#former.get(id)?.has(input) === true),
        () => `the input of ${id} was ${this.#inputs.get(id)} when it was sent and is ${input}`,
      );
  }
}
