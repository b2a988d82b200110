// How long a watcher on PostgreSQL holds back, on a server of the test's own making and a virtual clock: what a real server can't be
// made to do at will.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { WorkerRow } from "../../src/core/liveness.ts";
import { DirectSession, type SessionClient } from "../../src/stores/postgres/direct-session.ts";
import { AdvisoryLiveness, HOLD_MS } from "../../src/stores/postgres/liveness.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";

/** A server without locks. `upMs`: its age as it tells it, which counts from before it replayed its log. */
class Server {
  run = "first";
  upMs = 3_600_000;
  looks = 0;
  #sessions = 0;
  #cut = (): void => {};

  readonly connect = async (): Promise<SessionClient> => {
    const pid = ++this.#sessions;
    const answer = async (statement: string | { readonly text: string }) => {
      if (typeof statement !== "string" && statement.text.includes("AS held")) this.looks++;
      return {
        rows: [{ pid, application: "-", database: "1", run: this.run, up_ms: this.upMs, now_ms: 0, held: [] }],
      };
    };
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

function watching(server: Server) {
  const clock = virtualClock();
  const holds: string[] = [];
  const random = fixedRandom(0.5);
  const session = new DirectSession({ connect: server.connect, clock, random });
  const onHold = (why: string, holdMs: number): number => holds.push(`${why}: ${holdMs}`);
  const liveness = new AdvisoryLiveness({ session, schema: "s", clock, random, onHold });
  const probe = async (run: string): Promise<string> => {
    const row = { id: "w", state: "live", lock: { name: "7", identity: `1 - ${run}` } } as WorkerRow;
    const probed = liveness.probe(row);
    await clock.advance(250);
    return probed;
  };
  return { clock, liveness, holds, probe };
}

for (const upMs of [100, 4_900, 60_000]) {
  test(`a watcher that was cut off by a restart counts from its own return, though the server calls itself ${upMs} ms old`, async () => {
    const server = new Server();
    const { clock, liveness, holds, probe } = watching(server);
    assert.equal(await probe("first"), "free");
    server.restart("second", upMs);
    assert.equal(await probe("first"), "unknown", "who held it may be on its way back");
    assert.deepEqual(holds, [`the store restarted: ${HOLD_MS}`]);
    await clock.advance(HOLD_MS - 251);
    assert.equal(liveness.holdMs(), 1);
    await clock.advance(1);
    assert.equal(await probe("first"), "free");
  });
}

test("a watcher that is new on a young server holds back until it is 5 s old, but not for a lock of this very run", async () => {
  const server = new Server();
  server.restart("second", 2_000);
  const { liveness, holds, probe } = watching(server);
  assert.equal(await probe("first"), "unknown");
  assert.deepEqual(holds, ["the store restarted: 3000"]);
  assert.equal(liveness.holdMs(), 2_750);
  assert.equal(await probe("second"), "free");
});

test("a watcher that is new on an old server holds back for nobody", async () => {
  const { holds, probe } = watching(new Server());
  assert.equal(await probe("another"), "free");
  assert.deepEqual(holds, []);
});

test("of two questions, 250 ms to 2 s apart, the second needs one look only: the one before was the first", async () => {
  const server = new Server();
  const { clock, probe } = watching(server);
  for (const [pauseMs, looks] of [
    [0, 2],
    [1_500, 1],
    [2_001, 2],
  ] as const) {
    await clock.advance(pauseMs);
    const before = server.looks;
    assert.equal(await probe("first"), "free");
    assert.equal(server.looks - before, looks, `after ${pauseMs} ms`);
  }
});
