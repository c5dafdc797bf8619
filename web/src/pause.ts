/** Let others have a turn: the page, which draws and listens, or messages that say to stop. wasm never gives way itself. */
export function pause(): Promise<void> {
  if (typeof setImmediate === "function") return new Promise((resolve) => setImmediate(resolve));
  // Timers wait for four milliseconds, messages do not.
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
