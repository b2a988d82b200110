// So many callers at once, each waiting for its own job before it sends the next; returns jobs per second.
export async function inFlight(
  { count, width }: { readonly count: number; readonly width: number },
  send: (n: number) => Promise<unknown>,
): Promise<number> {
  const chain = async (): Promise<void> => {
    for (let n = 0; n < count / width; n++) await send(n);
  };
  const from = performance.now();
  await Promise.all(Array.from({ length: width }, chain));
  return (count * 1_000) / (performance.now() - from);
}
