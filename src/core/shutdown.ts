// The end of a worker that was asked to stop: no more claims, what runs may finish, the rest is given back at no cost.
import { type Clock, pause } from "./clock.ts";
import type { Worker } from "./worker.ts";

/** For the last fifth of the grace, at most this long, handlers know that they should end. */
const NOTICE_MS = 5_000;
/** How long the settlements of what was released may take to become durable before the worker leaves without them. */
const FLUSH_MS = 5_000;

/** Answers how many jobs were released. */
export async function shutDown(worker: Worker, clock: Clock, graceMs: number): Promise<number> {
  const empty = worker.drain();
  const noticeMs = Math.min(NOTICE_MS, graceMs / 5);
  if (await within(clock, empty, graceMs - noticeMs)) return 0;
  worker.interruptAll("shutdown", "the worker shuts down");
  if (await within(clock, empty, noticeMs)) return 0;
  const released = worker.releaseAll("its worker shut down");
  await within(clock, empty, FLUSH_MS);
  return released;
}

async function within(clock: Clock, done: Promise<void>, ms: number): Promise<boolean> {
  const given = new AbortController();
  const won = await Promise.race([done.then(() => true), pause(clock, ms, given.signal).then(() => false)]);
  given.abort();
  return won;
}
