// Where a run takes place: a scratch store of its own beside the user's, on the same disk or server, so that what is shown holds for
// that place. Nothing of the user's is opened, and nothing is left.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { atEnd } from "../demo/clean-up.ts";

export interface ScratchPlace {
  readonly store: "sqlite";
  readonly url: string;
  readonly folder: string;
}

/** `store`: an address, or the name of a kind of store for one in the system's temporary folder. */
export function scratchPlace(store: string, keep: boolean): ScratchPlace {
  const beside =
    store === "sqlite" || store === "sqlite::memory:" ? tmpdir() : dirname(resolve(store.slice("sqlite:".length)));
  const folder = mkdtempSync(join(beside, "outlive-torture-"));
  keepOrRemove(folder, keep);
  return { store: "sqlite", url: `sqlite:${join(folder, "torture.db")}`, folder };
}

/** At the end of the process, whatever ends it. */
export function keepOrRemove(folder: string, keep: boolean): void {
  if (keep) atEnd(() => void process.stderr.write(`Everything is kept in ${folder}\n`));
  else atEnd(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 }));
}
