// Package brokerlink is the bridge's connection to the broker that started it:
// one packet socket, over which the configuration comes once and requests go.
// When the broker is gone the link is down for good and the bridge goes on.
package brokerlink
