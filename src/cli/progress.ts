// How far something long has come: a line on stderr once a second, none if it is over sooner.
import { count } from "./words.ts";

const EVERY_MS = 1_000;

/** Call it with the number so far, as often as you like. */
export function progress(
  remark: (text: string) => void,
  doing: string,
  now: () => number = () => performance.now(),
): (jobs: number) => void {
  let toldAt = now();
  return (jobs) => {
    if (now() - toldAt < EVERY_MS) return;
    toldAt = now();
    remark(`${doing}: ${count(jobs, "job")} so far`);
  };
}
