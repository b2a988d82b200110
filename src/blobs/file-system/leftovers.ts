// Unfinished puts: where they are written, and how those of dead processes are removed. A file's name says which process writes it.
// Removing one of a live process by mistake would only fail its put: the rename finds no file, and nothing half-written appears.
import { lstat, readdir, unlink } from "node:fs/promises";
import { join } from "node:path";
import { checkProcess, processIdentity } from "../../platform/identity.ts";
import { systemRandom } from "../../platform/clock.ts";
import { differentKernels, type ProcessKey } from "../../stores/liveness.ts";
import { codeOf } from "./errors.ts";

/** Directly in the store's folder. No key starts with a dot. */
export const INCOMING = ".incoming";

/** A writer whose process can't be checked, because it is in another container, is dead when its file has not grown for this long. */
const ABANDONED_AFTER_MS = 24 * 3_600_000;

let own: string | undefined;

/** Unique, and says which process writes it. */
export function incomingName(): string {
  own ??= encoded(processIdentity());
  return `${own}.${systemRandom.hex(8)}`;
}

/** Removes what dead processes left. Returns how many files that were. Files that no put made are not touched. */
export async function sweep(root: string, now: number): Promise<number> {
  const folder = join(root, INCOMING);
  let removed = 0;
  for (const name of await readdir(folder)) {
    const writer = writerOf(name);
    if (writer === null) continue;
    const path = join(folder, name);
    try {
      if (!(await isAbandoned(writer, path, now))) continue;
      await unlink(path);
      removed++;
    } catch (thrown) {
      // Its put ended meanwhile, or another process swept it.
      if (codeOf(thrown) !== "ENOENT") throw thrown;
    }
  }
  return removed;
}

async function isAbandoned(writer: ProcessKey, path: string, now: number): Promise<boolean> {
  // A local disk has one kernel, so a writer under another one died with it.
  if (differentKernels(writer.bootId, processIdentity().bootId)) return true;
  const state = checkProcess(writer);
  return state === "gone" || (state === "unknown" && now - (await lstat(path)).mtimeMs > ABANDONED_AFTER_MS);
}

function encoded({ bootId, namespace, pid, startTicks }: ProcessKey): string {
  return Buffer.from(JSON.stringify([bootId, namespace, pid, startTicks])).toString("base64url");
}

function writerOf(name: string): ProcessKey | null {
  try {
    const [bootId, namespace, pid, startTicks] = JSON.parse(
      Buffer.from(name.slice(0, name.indexOf(".")), "base64url").toString(),
    ) as [string, string | null, number, string | null];
    return typeof bootId === "string" && typeof pid === "number" ? { bootId, namespace, pid, startTicks } : null;
  } catch {
    return null;
  }
}
