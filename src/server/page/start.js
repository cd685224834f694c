/* SPDX-License-Identifier: Apache-2.0 */
showSettings();
readChats();
poll();
