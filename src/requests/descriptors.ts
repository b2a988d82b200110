// Each request in flight has a socket, and a process has a limit of them. More than fit are refused when a worker starts: met later, the limit is an error of whatever
// opens a file next.
import { readFileSync } from "node:fs";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** What a worker needs in addition: its store, its thread, its lock, logs. */
const OTHERS = 200;

export function assertDescriptors(inFlight: number, limit: number | null = openFiles()): void {
  if (limit === null || inFlight + OTHERS <= limit) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `This worker would have ${inFlight} requests in flight, and this process may open ${limit} files, of which others need ${OTHERS}.`,
    `Raise the limit (ulimit -n, LimitNOFILE), or set \`concurrency\` of its requests to ${Math.max(1, limit - OTHERS)} or less.`,
    { inFlight, limit },
  );
}

/** The limit of this process; null: it is not known here, or there is none. */
function openFiles(): number | null {
  try {
    const found = /^Max open files\s+(\d+)/m.exec(readFileSync("/proc/self/limits", "utf8"));
    return found ? Number(found[1]) : null;
  } catch {
    return null;
  }
}
