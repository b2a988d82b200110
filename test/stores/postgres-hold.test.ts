// How long a watcher on PostgreSQL holds back, on a server of the test's own making and a virtual clock: what a real server can't be
// made to do at will.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { WorkerRow } from "../../src/stores/liveness.ts";
import { DirectSession, type SessionClient } from "../../src/stores/postgres/direct-session.ts";
import { AdvisoryLiveness, HOLD_MS } from "../../src/stores/postgres/liveness.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";

/** A server that holds the locks named in `held`. `upMs`: its age as it tells it, which counts from before it replayed its log. */
class Server {
  run = "first";
  upMs = 3_600_000;
  held: string[] = [];
  #sessions = 0;
  #cut = (): void => {};

  readonly connect = async (): Promise<SessionClient> => {
    const pid = ++this.#sessions;
    const answer = async () => ({
      rows: [{ pid, application: "-", database: "1", run: this.run, up_ms: this.upMs, now_ms: 0, held: this.held }],
    });
    return {
      processID: pid,
      query: answer,
      on: (event, listener) => void (event === "end" && (this.#cut = listener)),
      end: async () => {},
    };
  };

  restart(run: string, upMs: number): void {
    this.run = run;
    this.upMs = upMs;
    this.#cut();
  }
}

const CONTACT_MS = 250;

function watching(server: Server) {
  const clock = virtualClock();
  const holds: string[] = [];
  const random = fixedRandom(0.5);
  const session = new DirectSession({ connect: server.connect, clock, random });
  const onHold = (why: string, holdMs: number): number => holds.push(`${why}: ${holdMs}`);
  const liveness = new AdvisoryLiveness({ session, schema: "s", clock, random, contactMs: CONTACT_MS, onHold });
  const probe = async (run: string): Promise<string> => {
    const row = { id: "w", state: "live", lock: { name: "7", identity: `1 - ${run}` } } as WorkerRow;
    await liveness.probe(row);
    await clock.advance(CONTACT_MS);
    return liveness.probe(row);
  };
  return { clock, liveness, holds, probe };
}

for (const upMs of [100, 4_900, 60_000]) {
  test(`a watcher that was cut off by a restart counts from its own return, though the server calls itself ${upMs} ms old`, async () => {
    const server = new Server();
    const { clock, liveness, holds, probe } = watching(server);
    assert.equal(await probe("first"), "missing");
    server.restart("second", upMs);
    assert.equal(await probe("first"), "unknown", "who held it may be on its way back");
    assert.deepEqual(holds, [`the store restarted: ${HOLD_MS}`]);
    await clock.advance(HOLD_MS - 251);
    assert.equal(liveness.holdMs(), 1);
    await clock.advance(1);
    assert.equal(await probe("first"), "missing");
  });
}

test("a watcher that is new on a young server holds back until it is 5 s old, but not for a lock of this very run", async () => {
  const server = new Server();
  server.restart("second", 2_000);
  const { liveness, holds, probe } = watching(server);
  assert.equal(await probe("first"), "unknown");
  assert.deepEqual(holds, ["the store restarted: 3000"]);
  assert.equal(liveness.holdMs(), 2_750);
  assert.equal(await probe("second"), "missing");
});

test("a watcher that is new on an old server does not hold back", async () => {
  const { holds, probe } = watching(new Server());
  assert.equal(await probe("another"), "missing");
  assert.deepEqual(holds, []);
});

test("a lock is missing only if no look for the whole of contact found it, and looks were never more than 2 s apart", async () => {
  const server = new Server();
  const { clock, liveness } = watching(server);
  const row = { id: "w", state: "live", lock: { name: "7", identity: "1 - first" } } as WorkerRow;
  const probeAfter = async (ms: number): Promise<string> => {
    await clock.advance(ms);
    return liveness.probe(row);
  };
  assert.equal(await probeAfter(0), "unknown");
  assert.equal(liveness.isWaitingForContact(), true);
  assert.equal(await probeAfter(CONTACT_MS - 1), "unknown");
  server.held = ["7"];
  assert.equal(await probeAfter(1), "held");
  assert.equal(liveness.isWaitingForContact(), false);
  server.held = [];
  assert.equal(await probeAfter(1), "unknown", "the time before it was back does not count");
  assert.equal(await probeAfter(2_001), "unknown", "what happened between two looks so far apart is not known");
  assert.equal(await probeAfter(CONTACT_MS), "missing");
});
