// A worker process under the parent that forked it: it drains on SIGTERM, leaves Ctrl-C to the parent, and does not outlive it.

/** Runs `work` until it ends, on its own or because of `stop`, and then disconnects from the parent. */
export function runUnderParent(work: (stop: AbortSignal) => Promise<void>): void {
  const stop = new AbortController();
  const orphaned = (): void => {
    process.kill(0, "SIGCONT"); // a sibling that was frozen when the parent died would stay frozen
    process.exit(1);
  };
  process.on("SIGTERM", () => stop.abort());
  process.on("SIGINT", () => {});
  process.on("disconnect", orphaned);
  work(stop.signal).then(
    () => {
      process.off("disconnect", orphaned);
      process.disconnect();
    },
    (thrown: unknown) => {
      console.error(thrown);
      process.exit(1);
    },
  );
}

/** A parent that is gone hears nothing: this process is about to end, too. */
export function tellParent(message: object): void {
  if (process.connected) process.send!(message);
}
