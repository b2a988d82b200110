// Surroundings in which a part of Outlive can't work as usual: no file can be watched.
import assert from "node:assert/strict";
import { test } from "node:test";
import { inNamespaces, nodeUnder } from "../regressions/namespaces.ts";
import { transfer } from "../support/jobs.ts";
import { Place, untilState } from "../support/processes.ts";

test(
  "without inotify instances a worker says so, and polling finds what other processes enqueue",
  inNamespaces,
  async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    await place.ledger(engine);
    // In a user namespace of its own the limit is its own, too.
    const limit = "echo 0 > /proc/sys/user/max_inotify_instances";
    const execPath = nodeUnder(place.folder, "node-without-inotify", "--user --map-root-user", limit);
    const worker = place.child({ execPath, poll: "100ms" });
    await worker.untilFact("working");
    const notice = await worker.untilEvent("store.notice");
    assert.equal(notice["about"], "wake-ups");
    assert.match(String(notice["text"]), /wakeup can't be watched \(EMFILE.*raise fs\.inotify\.max_user_watches/);
    const { id } = await engine.enqueue(transfer, { n: 1 });
    await untilState(engine, id, "succeeded");
  },
);
