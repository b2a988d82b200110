// A reporter for Node's test runner: at the end of a whole run, the test files that took longest. A run is as long as its slowest files, and
// CI has half an hour for all of them.
const SHOWN = 25;

/** @param {AsyncIterable<{ type: string, data: { file?: string, nesting?: number, details?: { duration_ms?: number } } }>} events */
// oxlint-disable-next-line import/no-default-export -- the runner takes the default export
export default async function* slowestFiles(events) {
  /** @type {Map<string, number>} */
  const msOf = new Map();
  for await (const { type, data } of events) {
    if ((type !== "test:pass" && type !== "test:fail") || data.nesting !== 0 || data.file === undefined) continue;
    msOf.set(data.file, (msOf.get(data.file) ?? 0) + (data.details?.duration_ms ?? 0));
  }
  if (msOf.size <= SHOWN) return;
  yield `The ${SHOWN} slowest of ${msOf.size} test files, in seconds:\n`;
  const slowest = [...msOf].toSorted(([, a], [, b]) => b - a).slice(0, SHOWN);
  for (const [file, ms] of slowest)
    yield `${(ms / 1000).toFixed(1).padStart(8)}  ${file.replace(/^.*\/test\//, "test/")}\n`;
}
