// An idle fleet: one process polls for all, and finds what a process that was killed between its commit and its wake-up has left behind.
import { test } from "node:test";
import { polledForAll } from "../support/polled.ts";
import { Place } from "../support/processes.ts";

for (const kills of [false, true])
  test(`a job whose process was killed before its wake-up starts soon${kills ? ", also if the process that polls for all was killed" : ""}`, (t) => {
    const place = new Place(t);
    const start = (kind: string, poll: "1h" | "1s") => place.child({ heartbeat: {}, only: [kind], poll });
    return polledForAll(t, { url: place.url, start }, kills);
  });
