// Promise 7: a row of the ledger appears in the same transaction in which its job succeeds, one for one success, and never
// otherwise. The sum of all accounts is what it was at the beginning.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { STATE } from "./model.ts";
import type { JobRow, LedgerRow } from "./watch.ts";
import { demand } from "./violation.ts";

export class MoneyLaw {
  readonly #db: Database;
  readonly #kind: string;
  readonly #sum: number;

  /** `kind`: the kind whose success is a commit. `sum`: of all accounts, forever. */
  constructor(db: Database, kind: string, sum: number) {
    this.#db = db;
    this.#kind = kind;
    this.#sum = sum;
  }

  onMoment(
    changes: readonly { readonly was: JobRow | null; readonly is: JobRow | null }[],
    ledger: readonly { readonly was: LedgerRow | null; readonly is: LedgerRow | null }[],
  ): void {
    const succeeded = changes.flatMap(({ was, is }) =>
      was?.state === STATE.running && is?.state === STATE.succeeded && is.kind === this.#kind
        ? [`${is.id} ${is.fence}`]
        : [],
    );
    if (succeeded.length === 0 && ledger.length === 0) return;
    const written = ledger.map(({ was, is }) => {
      demand(was === null && is !== null, () => `the ledger row of job ${(was ?? is)!.job} was changed`);
      return `${is.job} ${is.fence}`;
    });
    for (const entry of written)
      demand(succeeded.includes(entry), () => `the ledger got a row of (job, fence) ${entry}, which did not succeed`);
    for (const entry of succeeded)
      demand(
        written.filter((row) => row === entry).length === 1,
        () =>
          `(job, fence) ${entry} succeeded and ${written.filter((row) => row === entry).length} ledger rows came of it`,
      );
    const sum = this.#total();
    demand(sum === this.#sum, () => `the sum of the accounts was ${this.#sum} and is ${sum}`);
  }

  #total(): number {
    return (this.#db.sql("SELECT sum(balance) AS sum FROM accounts").get() as { sum: number }).sum;
  }
}
