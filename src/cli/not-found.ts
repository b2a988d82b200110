// What the CLI says when there is no such thing, and where to look for one.
import { ErrorCode, OutliveError } from "../core/errors.ts";

export function noSuchJob(id: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `There is no job ${id}.`,
    "Look for it: outlive jobs --text PART. Finished jobs are kept for the retention time only.",
    { jobId: id },
  );
}

export function noSuchIncident(id: string): OutliveError {
  return new OutliveError(ErrorCode.notFound, `There is no incident ${id}.`, "List them: outlive incidents", {
    incident: id,
  });
}

export function noSuchKind(kind: string, kinds: readonly string[]): OutliveError {
  const near = nearest(kind, kinds);
  const hint = near === null ? `There are: ${kinds.join(", ") || "none yet"}.` : `Did you mean ${near}?`;
  return new OutliveError(ErrorCode.notFound, `No kind ${JSON.stringify(kind)} is in the store.`, hint, {
    kind,
    kinds,
  });
}

/** The one that is a few keystrokes away; null: none is near. */
function nearest(word: string, words: readonly string[]): string | null {
  const [best] = words
    .map((one) => ({ one, distance: distance(word.toLowerCase(), one.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance);
  return best && best.distance <= Math.max(1, Math.floor(word.length / 3)) ? best.one : null;
}

/** Levenshtein's, with a swap of neighbours as one keystroke. */
function distance(a: string, b: string): number {
  const rows: number[][] = Array.from({ length: a.length + 1 }, (_, i) => [i]);
  for (let j = 0; j <= b.length; j++) rows[0]![j] = j;
  for (let i = 1; i <= a.length; i++) {
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let least = Math.min(rows[i - 1]![j]! + 1, rows[i]![j - 1]! + 1, rows[i - 1]![j - 1]! + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        least = Math.min(least, rows[i - 2]![j - 2]! + 1);
      rows[i]![j] = least;
    }
  }
  return rows[a.length]![b.length]!;
}
